package gvisor

func wrapSyscalls() {}
