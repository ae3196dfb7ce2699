package main

import (
	"log"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What a start did with a name. Greater is more. What is its own, it made itself.
const (
	looked = iota + 1
	opened
	executed
	own
)

var states = []string{looked: "looked", opened: "opened", executed: "executed"}

// A line of strace: the call, the directory that its path is relative to, the path, and
// whether it failed.
var (
	asked  = regexp.MustCompile(`^(open|openat|openat2|stat|lstat|newfstatat|statx|access|faccessat2?|readlink|readlinkat|execve|execveat|chdir)\((?:(?:AT_FDCWD|-?\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)+)".* = (-?)\d+`)
	linked = regexp.MustCompile(`^(symlink(?:at)?)\(".*", (?:(?:AT_FDCWD|-?\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)+)"\) = (-?)\d+`)
	forked = regexp.MustCompile(`^(?:clone|clone3|fork|vfork)\(.* = (\d+)$`)
	moved  = regexp.MustCompile(`^fchdir\(\d+<([^>]*)>\) += 0`)
)

// parse returns what the traces in a directory say of names below base, base/up and
// base/up/here, relative to the nearest of them.
func parse(dir, base string) map[string]int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		log.Fatal(err)
	}
	seen, files := map[string]int{}, map[int]string{}
	for _, e := range entries {
		b, err := os.ReadFile(dir + "/" + e.Name())
		pid, bad := strconv.Atoi(strings.TrimPrefix(e.Name(), "t."))
		if err != nil || bad != nil {
			log.Fatal(err, bad)
		}
		files[pid] = string(b)
	}
	var process func(pid int, cwd string)
	process = func(pid int, cwd string) {
		text := files[pid]
		delete(files, pid)
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if m := forked.FindStringSubmatch(line); m != nil {
				child, _ := strconv.Atoi(m[1])
				process(child, cwd)
			} else if m := moved.FindStringSubmatch(line); m != nil {
				cwd = m[1]
			} else if m := asked.FindStringSubmatch(line); m != nil {
				cwd = note(seen, base, cwd, m, strings.Contains(line, "O_EXCL"))
			} else if m := linked.FindStringSubmatch(line); m != nil {
				note(seen, base, cwd, m, true)
			}
		}
	}
	for _, pid := range slices.Sorted(maps.Keys(files)) {
		process(pid, base+"/up/here")
	}
	maps.DeleteFunc(seen, func(_ string, state int) bool { return state == own })
	return seen
}

// note notes what a call asked, and returns the directory that the process is in then.
func note(seen map[string]int, base, cwd string, m []string, makes bool) string {
	name, _ := strconv.Unquote(`"` + m[3] + `"`)
	if !path.IsAbs(name) && m[2] != "" {
		name = path.Join(m[2], name)
	} else if !path.IsAbs(name) {
		name = path.Join(cwd, name)
	}
	name, ok, state := path.Clean(name), m[4] == "", looked
	switch {
	case makes:
		state = own
	case ok && m[1] == "chdir":
		cwd = name
	case ok && strings.HasPrefix(m[1], "open"):
		state = opened
	case ok && strings.HasPrefix(m[1], "exec"):
		state = executed
	}
	for _, dir := range []string{base + "/up/here/", base + "/up/", base + "/"} {
		if rel, below := strings.CutPrefix(name, dir); below {
			// Some ask for a name in capitals, to learn whether the file system folds names.
			if !strings.EqualFold(rel, "up") && !strings.EqualFold(rel, "here") && (state != own || seen[rel] == 0) {
				seen[rel] = max(seen[rel], state)
			}
			break
		}
	}
	return cwd
}
