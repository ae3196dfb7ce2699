package program

import _ "embed"

//go:embed agent_amd64.gz
var packed []byte
