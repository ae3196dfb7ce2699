package receipt

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/store"
)

// LeftInside returns where files that the run wrote, and did not remove, are in the bottle
// alone: outside the workspace and the mounts. It leaves out what programs make for
// themselves: temporary files, caches, state, and all below a name that begins with a dot.
// Most files come first. It knows the files that Files lists.
func (r *Receipt) LeftInside() []Area {
	if r.Files == nil {
		return nil
	}
	count := map[store.Raw]int64{}
	for _, w := range r.Files.Written {
		if rank, _ := r.where(w); rank == 1 && w.written() && !fleeting(string(w.Path)) {
			count[areaOf(string(w.Path))]++
		}
	}
	var out []Area
	for dir, n := range count {
		out = append(out, Area{dir, n})
	}
	slices.SortFunc(out, func(a, b Area) int { return cmp.Or(cmp.Compare(b.Files, a.Files), cmp.Compare(a.Path, b.Path)) })
	return out
}

// written reports whether the path has content that the run gave it. A file that is
// written and then renamed is at another path.
func (w Written) written() bool {
	wrote, moved := slices.Index(w.How, "write"), slices.Index(w.How, "rename")
	if slices.Contains(w.How, "remove") {
		return false
	}
	return moved >= 0 && (wrote < 0 || moved < wrote) || wrote >= 0 && moved < 0
}

var fleetingDirs = []string{"/dev/", "/proc/", "/sys/", "/run/", "/tmp/", "/var/tmp/", "/var/run/", "/var/lock/", "/var/cache/", "/var/log/", "/var/lib/"}

func fleeting(name string) bool {
	return strings.Contains(name, "/.") || slices.ContainsFunc(fleetingDirs, func(d string) bool { return strings.HasPrefix(name, d) })
}

// areaOf returns a file's directory, or the one above it that has three names.
func areaOf(name string) store.Raw {
	names := strings.SplitN(path.Dir(name), "/", 5)
	return store.Raw(strings.Join(names[:min(len(names), 4)], "/"))
}
