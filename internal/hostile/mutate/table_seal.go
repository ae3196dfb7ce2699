package main

// S1 and S2: the bottle's walls. Several of them stand behind one another; a
// mutant then takes down all that hold, and Why says so.

var sealMutants = []mutant{
	{
		Name: "workspace-brings-its-surroundings", Promise: "S1",
		Why:     "what lies two directories above the workspace is shown with it",
		Package: "./internal/hostile", Tests: []string{"TestS1HostFiles", "TestS6Bind"}, Says: "escaped host-files/",
		edits: []edit{{"plan.go", "	live := &bottle.Mount{Source: p.source, Target: p.target, Dev: p.ws.Dev, Ino: p.ws.Ino}", "	above := filepath.Dir(filepath.Dir(p.target))\n	live := &bottle.Mount{Source: above, Target: above}"}},
	},
	{
		Name: "environment-is-handed-on", Promise: "S1",
		Why:     "the command gets all of carboy's own variables, tokens among them",
		Package: "./internal/hostile", Tests: []string{"TestS1HostFiles"}, Says: "escaped host-files/",
		edits: []edit{{"environ.go", "	for _, n := range passEnv {\n", "	for _, kv := range os.Environ() {\n		n, v, _ := strings.Cut(kv, \"=\")\n		env[n] = v\n	}\n	for _, n := range passEnv {\n"}},
	},
	{
		Name: "read-only-is-not-kept", Promise: "S1",
		Why:     "a read-only mount can be written to. Three walls hold it: the host's mount flag, the sandbox's own, and the posture that refuses a bottle without the first; all are off",
		Package: "./internal/hostile", Tests: []string{"TestS1NamespaceTricks"}, Says: "escaped namespaces/",
		edits: []edit{
			{"internal/bottle/gvisor/root.go", "	if ro {\n		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY\n	}\n", ""},
			{"internal/bottle/gvisor/root.go", "	return append(o, \"ro\")", "	return append(o, \"rw\")"},
			{"internal/bottle/gvisor/posture.go", "	return fmt.Errorf(\"can write to its mount at %q\", point)", "	return nil"},
		},
	},
	{
		Name: "posture-is-not-judged", Promise: "S1",
		Why:     "a bottle whose processes are not held as planned runs all the same",
		Package: "./internal/bottle/gvisor", Tests: []string{"TestPostureRefuses"}, Says: "was not refused",
		edits: []edit{{"internal/bottle/gvisor/posture.go", "		if err := own.judge(raw, uid, writable); err != nil {", "		if err := error(nil); err != nil {"}},
	},
	{
		Name: "swapped-mounts-are-shown", Promise: "S1",
		Why:     "a directory that was put in a mount's place after it was checked is shown",
		Package: "./internal/bottle/gvisor", Tests: []string{"TestContract/SwappedMount"}, Says: "SwappedMount",
		edits: []edit{{"internal/bottle/gvisor/root.go", "	if s.id.Ino != 0 && s.id !=", "	if false && s.id !="}},
	},
	{
		Name: "host-pipes-are-opened", Promise: "S1",
		Why:     "a pipe of the host that lies in the workspace leads out",
		Package: "./internal/hostile", Tests: []string{"TestS1SpecialFiles"}, Says: "the host's pipe",
		edits: []edit{{"internal/bottle/gvisor/spec.go", "\"host-fifo\":                   \"none\"", "\"host-fifo\":                   \"open\""}},
	},
	{
		Name: "root-inside-has-rights", Promise: "S1",
		Why:     "the command has every capability and may gain more, and set-user-id programs work",
		Package: "./internal/hostile", Tests: []string{"TestS1KernelInterfaces", "TestS2NetworkChanges"}, Says: "escaped kernel-interfaces/",
		edits: []edit{
			{"internal/bottle/gvisor/shim.go", "		NoNewPrivileges: true,\n		Capabilities:    &auth.TaskCapabilities{},", "		Capabilities: &auth.TaskCapabilities{PermittedCaps: auth.AllCapabilities, EffectiveCaps: auth.AllCapabilities, InheritableCaps: auth.AllCapabilities, BoundingCaps: auth.AllCapabilities, AmbientCaps: auth.AllCapabilities},"},
		},
	},
	{
		Name: "seccomp-table-is-wrong", Promise: "S1",
		Why:     "the ready-made filter of the sandbox is not the one that its rules make: one instruction differs",
		Package: "./internal/bottle/gvisor", Tests: []string{"TestSeccompIsCurrent"}, Says: "seccomp",
		edits: []edit{{"internal/bottle/gvisor/seccomp_table_amd64.go", "0xc000003e, 0x20, 0x0, 0x4000015, 0xca,\n	0x20, 0x18, 0xe90045", "0xc000003e, 0x20, 0x0, 0x4000015, 0xcb,\n	0x20, 0x18, 0xe90045"}},
	},
	{
		Name: "init-can-be-killed", Promise: "S1",
		Why:     "init is a process of the command's own user: it is read and signalled, and kill -9 -1 ends the bottle and its changes",
		Package: "./internal/hostile", Tests: []string{"TestS1KillInit", "TestS1HostProcesses"}, Says: "ended",
		edits: []edit{{"internal/bottle/gvisor/spec.go", "User:            specs.User{UID: initID, GID: initID},", "User:            specs.User{UID: p.User.UID, GID: p.User.GID},"}},
	},
	{
		Name: "host-loopback-without-a-route", Promise: "S2",
		Why:     "the name of the host's own loopback needs no route",
		Package: "./internal/hostile", Tests: []string{"TestS2HostPorts"}, Says: "escaped host-ports/names",
		edits: []edit{{"internal/policy/table.go", "	if v, ok := pick(found, match); ok {\n", "	if canonical == HostGateway {\n		return Verdict{Allowed: true, Private: true, Reason: ReasonRoute}\n	}\n	if v, ok := pick(found, match); ok {\n"}},
	},
	{
		Name: "host-sockets-are-opened", Promise: "S2",
		Why:     "a Unix socket of the host that lies in the workspace or a mount answers: docker.sock, ssh-agent. The posture refuses the rights that the gofer then keeps, so it lets those pass",
		Package: "./internal/hostile", Tests: []string{"TestS2UnixSockets", "TestS2PoolSockets"}, Says: "escaped sockets/",
		edits: []edit{{"internal/bottle/gvisor/spec.go", "\"host-uds\":                    \"none\"", "\"host-uds\":                    \"open\""}, {"internal/bottle/gvisor/posture.go", "{\"gofer\": 1 << unix.CAP_SYS_CHROOT}", "{\"gofer\": 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID}"}},
	},
	{
		Name: "raw-packets-are-sent", Promise: "S2",
		Why:     "packet sockets work and the command may use them",
		Package: "./internal/hostile", Tests: []string{"TestS2UnixSockets"}, Says: "escaped sockets/",
		edits: []edit{
			{"internal/bottle/gvisor/spec.go", "\"net-raw\":                     \"false\"", "\"net-raw\":                     \"true\""},
			{"internal/bottle/gvisor/shim.go", "		Capabilities:    &auth.TaskCapabilities{},", "		Capabilities:    &auth.TaskCapabilities{PermittedCaps: auth.AllCapabilities, EffectiveCaps: auth.AllCapabilities, InheritableCaps: auth.AllCapabilities, BoundingCaps: auth.AllCapabilities, AmbientCaps: auth.AllCapabilities},"},
		},
	},
}
