package main

import "strconv"

// load describes one command to measure. Peers run the same command in different sandboxes.
type load struct {
	name string
	what string // for the table
	// argv returns the command, which runs in the workspace, for the peer's place.
	argv func(p place) []string
	// bare runs the load without the clock inside, for loads so short that starting
	// this program would take most of the time.
	bare bool
	reps int  // per round
	net  bool // wants to reach the server
	// kept says what is kept for it between samples; empty: nothing.
	kept kept
	// nativeOnly marks a load that runs only on the bare machine.
	nativeOnly bool
	// traced: also run in pairs with and without a trace, so many times in each;
	// short ones more often, since processor time is told in hundredths of a second.
	traced int
	// needs names a program that must be on the PATH, and says how to get it.
	needs, install string
}

// place holds the parts of a command line that differ between peers.
type place struct {
	ws        string // the workspace
	tmp       string // an own empty directory, outside the workspace
	server    string // HOST:PORT
	megabytes int    // to download
	carboy    string // the binary; empty: it is not measured
}

// kept says which process stays between samples.
type kept string

const (
	living  kept = "living"  // something that runs; the load is a second process in it
	waiting kept = "waiting" // something made ready for this load, and used up by it
)

func fixed(argv ...string) func(place) []string {
	return func(place) []string { return argv }
}

func goBuild(cache, tmp, to string) []string {
	return []string{"/usr/bin/env", "GOCACHE=" + cache, "GOPATH=" + tmp + "/gopath", "GOTMPDIR=" + tmp, "GOENV=off", "GOFLAGS=",
		"GOPROXY=off", "GOTOOLCHAIN=local", "GOTELEMETRY=off", "CGO_ENABLED=0", "go", "build", "-C", "module", "-o", to, "."}
}

// gitStatus runs git status without changing the index, so that all samples are equal.
func gitStatus(tree string) func(place) []string {
	return fixed("git", "--no-optional-locks", "-c", "safe.directory=*", "-C", tree, "status", "--porcelain")
}

// loads lists the loads in the table's order.
var loads = []load{
	{name: "start", what: "start: the whole of `run true`", argv: fixed("true"), bare: true, reps: 5},
	{name: "exec", what: "`true` in what runs already: `exec`", argv: fixed("/bin/true"), bare: true, reps: 5, kept: living},
	{name: "pool", what: "`true` in what waits for it: `run --pool 1`", argv: fixed("/bin/true"), bare: true, reps: 5, kept: waiting},
	{name: "version", what: "`carboy version`", argv: func(p place) []string { return []string{p.carboy, "version"} }, bare: true, reps: 5, nativeOnly: true},
	{name: "true300", what: "300 × `true` from a shell", reps: 1, traced: 1,
		argv: fixed("/bin/sh", "-c", "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done")},
	{name: "gobuild", what: "go build, nothing cached", reps: 1, argv: func(p place) []string {
		return goBuild(p.tmp+"/gocache", p.tmp, p.tmp+"/small")
	}},
	{name: "gowarm", what: "go build, all cached", reps: 2, traced: 3, argv: func(p place) []string {
		return goBuild(p.ws+"/gocache", p.tmp, p.tmp+"/small")
	}},
	{name: "gitstatus", what: "git status, 3,800 files, settled", reps: 2, traced: 5, argv: gitStatus("tree")},
	{name: "gitfresh", what: "git status, 3,800 files, index as fresh as they", reps: 2, argv: gitStatus("fresh")},
	{name: "npm", what: "npm install, 36 local dependencies", reps: 1, needs: "npm", install: "apt-get install npm",
		argv: func(p place) []string {
			return []string{"/bin/sh", "-c", "mkdir out/app && cd out/app && exec npm install --offline --no-audit --no-fund --no-update-notifier --cache " + p.tmp + "/npm ../../packages/small.tgz"}
		}},
	{name: "clone", what: "git clone, 3,800 files", reps: 1,
		argv: fixed("git", "-c", "safe.directory=*", "clone", "-q", "--no-hardlinks", "repo.git", "out/clone")},
	{name: "untar", what: "untar, 3,800 files", reps: 1, traced: 2, argv: fixed("tar", "-xf", "tree.tar", "-C", "out")},
	{name: "download", what: "download", reps: 1, net: true, argv: func(p place) []string {
		return []string{"get", "http://" + p.server + "/zeros"}
	}},
	{name: "upload", what: "upload", reps: 1, net: true, argv: func(p place) []string {
		return []string{"put", "http://" + p.server + "/sink", strconv.Itoa(p.megabytes / 5 * 1_000_000)}
	}},
	{name: "connect", what: "500 connections, one request each", reps: 1, net: true, argv: func(p place) []string {
		return []string{"connect", p.server, "500"}
	}},
	{name: "ask", what: "1,000 requests on one connection", reps: 1, net: true, argv: func(p place) []string {
		return []string{"ask", "http://" + p.server + "/small", "1000"}
	}},
}
