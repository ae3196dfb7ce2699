//go:build !amd64

package gvisor

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

func bootTable() []precompiledseccomp.Program  { return nil }
func goferTable() []precompiledseccomp.Program { return nil }

var bootPIDs []int
