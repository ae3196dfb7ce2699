package program

import _ "embed"

//go:embed agent_arm64.gz
var packed []byte
