// Empty: its presence lets facts_calls.go declare functions of gVisor's by
// go:linkname.
