package main

import "time"

// S7: bottles that wait for a run. Asking is worth it where the keys agree, and
// the bottle's own process compares everything once more; a mutant that has it
// take the wrong one takes down both.

var poolMutants = []mutant{
	{
		Name: "limits-are-not-compared", Promise: "S7",
		Why:     "a run gets a ready bottle that was made with other limits",
		Package: "./cmd/carboy", Tests: []string{"TestPoolKey"}, Says: "held by",
		edits: []edit{
			{"ready.go", "o.Workspace, fmt.Sprintf(\"%+v\", o.Limits))", "o.Workspace)"},
			{"ready.go", "	case o.Limits != r.asked.Limits:\n		return \"limit\"\n", ""},
			{"ready.go", "	if limits != then {\n", "	if limits != then && limits.CPUs < 0 {\n"},
		},
	},
	{
		Name: "workspaces-are-not-compared", Promise: "S7",
		Why:     "a run gets a ready bottle that shows the directory which stood there before",
		Package: "./cmd/carboy", Tests: []string{"TestPoolSeesTheHost"}, Says: "in the new directory",
		edits: []edit{
			{"ready.go", "		parts = append(parts, fmt.Sprint(st.Dev, st.Ino, st.Uid, st.Gid))\n	}\n	wd, err", "	}\n	wd, err"},
			{"ready.go", "	case now.ws != had.ws, now.target != had.target:\n		return \"workspace\"\n", ""},
		},
	},
	{
		Name: "waiting-keeps-its-makers-variables", Promise: "S7",
		Why:     "a process that waits has the variables of the run that left it",
		Package: "./cmd/carboy", Tests: []string{"TestPoolSharesNothing"}, Says: "the environment of a waiting process",
		edits: []edit{{"cmd/carboy/pool.go", "			vars = append(vars, n+\"=\"+v)\n		}\n	}\n	for {", "			vars = append(vars, n+\"=\"+v)\n		}\n	}\n	for _, kv := range os.Environ() {\n		if strings.HasPrefix(kv, \"PATH=\") || strings.HasPrefix(kv, \"LC_\") {\n			vars = append(vars, kv)\n		}\n	}\n	for {"}},
	},
	{
		Name: "variables-are-not-handed-over", Promise: "S7",
		Why:     "a ready bottle's command gets the variables that its maker had, not its user's",
		Package: "./cmd/carboy", Tests: []string{"TestPoolSharesNothing"}, Says: "use 0: ",
		edits: []edit{{"cmd/carboy/pool.go", "strings.Cut(e, \"=\"); ok && k != \"\" {\n			if err := os.Setenv", "strings.Cut(e, \"=\"); ok && k != \"LC_TIME\" {\n			if err := os.Setenv"}},
	},
	{
		Name: "codes-are-not-handed-back", Promise: "S7",
		Why:     "a run in a ready bottle ends well for its user, however it ended",
		Package: "./cmd/carboy", Tests: []string{"TestPoolParity/streams"}, Says: "exit code differs",
		edits: []edit{{"cmd/carboy/pool.go", "		w.c.Send(poolExit{code})", "		w.c.Send(poolExit{})"}},
	},
	{
		Name: "strangers-are-heard", Promise: "S7",
		Why:     "nobody asks whose process is at the other end of a ready bottle's socket",
		Package: "./cmd/carboy", Tests: []string{"TestPoolStrangers"}, Says: "another user who may connect", root: true,
		edits: []edit{{"internal/handover/handover.go", "	if cred.Uid != uint32(os.Geteuid()) {", "	if cred == nil || os.Geteuid() < 0 {"}},
	},
	{
		Name: "a-run-outlives-its-user", Promise: "S5",
		Why:     "the run in a ready bottle goes on when the carboy that the user started was killed",
		Package: "./cmd/carboy", Tests: []string{"TestPoolKilled"}, Says: "goes on", wait: 10 * time.Second,
		edits: []edit{{"cmd/carboy/pool.go", "			w.cancel()\n			return\n", "			return\n"}},
	},
}
