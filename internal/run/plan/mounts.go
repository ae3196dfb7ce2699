package plan

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
)

// hostMounts returns the host's mounts that affect the directories which the plan shows:
// a bottle keeps the mounts that it was made with.
func (p *Plan) hostMounts() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	shown := []string{p.Target}
	for _, m := range append(append([]bottle.Mount(nil), p.Mounts...), p.Root.Binds...) {
		shown = append(shown, m.Source)
	}
	if p.Root.Dir != "" {
		shown = append(shown, fault.RealPath(p.Root.Dir))
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		// proc(5): id, parent, device, root, mount point, options, …
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		at := unescapeMount(f[4])
		for _, s := range shown {
			if s != "" && (fault.Within(at, s) || fault.Within(s, at)) {
				out = append(out, strings.TrimSpace(line))
				break
			}
		}
	}
	return out, nil
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func unescapeMount(s string) string { return mountEscapes.Replace(s) }

func parseMounts(specs []string, workspace, state string) ([]bottle.Mount, error) {
	var out []bottle.Mount
	for _, spec := range specs {
		m, err := parseMount(spec)
		if err != nil {
			return nil, err
		}
		// A mount above it covers it too, and then the command would work on the
		// host's directory while the receipt speaks of an overlay.
		if workspace == m.Target || strings.HasPrefix(workspace, m.Target+"/") {
			return nil, &fault.OptionError{Option: "--mount", Value: spec, Reason: "covers the workspace", Advice: "name a destination outside of it, or the directories that are needed"}
		}
		if workspace != "" && leadsOut(spec, m.Source, workspace) {
			return nil, &fault.OptionError{Option: "--mount", Value: spec, Reason: "has a source in the workspace that is a link out of it", Advice: "the workspace's files may be anybody's; name where the link leads if that is meant"}
		}
		if showsState(m.Source, state) && !ofIssue(m.Source, state) {
			return nil, &fault.OptionError{Option: "--mount", Value: spec, Reason: "would show carboy's own state", Advice: "name the directories that the command needs"}
		}
		out = append(out, m)
	}
	return out, nil
}

// leadsOut reports whether a mount's source is named in the workspace but lies
// elsewhere: then a link in the workspace chose what is shown, and an agent may have
// written the link.
func leadsOut(spec, real, workspace string) bool {
	src, _, _ := strings.Cut(spec, ":")
	if real == workspace || strings.HasPrefix(real, workspace+"/") {
		return false
	}
	abs, err := filepath.Abs(src)
	for ; err == nil && abs != "/"; abs = filepath.Dir(abs) {
		if fault.RealPath(filepath.Dir(abs)) == workspace {
			return true
		}
	}
	return err != nil
}

// bottlesOwn returns the directory of the bottle's own in which a path is, or "".
func bottlesOwn(path string) string {
	for _, own := range []string{"/proc", "/sys", "/dev", "/.carboy"} {
		if path == own || strings.HasPrefix(path, own+"/") {
			return own
		}
	}
	return ""
}

// parseMount reads SRC:DST[:ro|:rw]. The default is rw, since a mount is meant to share.
// It refuses sockets and devices.
func parseMount(spec string) (bottle.Mount, error) {
	bad := func(reason, advice string) (bottle.Mount, error) {
		return bottle.Mount{}, &fault.OptionError{Option: "--mount", Value: spec, Reason: reason, Advice: advice}
	}
	parts := strings.Split(spec, ":")
	access := bottle.AccessReadWrite
	switch {
	case len(parts) == 3 && parts[2] == "ro":
		access = bottle.AccessReadOnly
	case len(parts) == 3 && parts[2] == "rw", len(parts) == 2:
	default:
		return bad("is not SRC:DST or SRC:DST:ro", "")
	}
	src, dst := parts[0], parts[1]
	if rest, ok := strings.CutPrefix(src, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return bad("has ~, but the home directory is unknown", "")
		}
		src = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(dst) || filepath.Clean(dst) != dst || dst == "/" {
		return bad("has a destination that is not an absolute path", "")
	}
	if own := bottlesOwn(dst); own != "" {
		return bad("would cover the bottle's own "+own, "")
	}
	abs, err := filepath.Abs(src)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return bad("has a source that can't be found", "")
	}
	fi, err := os.Stat(abs)
	if err != nil || !fi.IsDir() && !fi.Mode().IsRegular() {
		return bad("has a source that is neither a directory nor a regular file", "")
	}
	if abs == "/" {
		return bad("would show the whole host", "name the directories that the command needs")
	}
	var st unix.Stat_t
	if err := unix.Lstat(abs, &st); err != nil {
		return bad("has a source that can't be found", "")
	}
	return bottle.Mount{Source: abs, Target: dst, Access: access, Dev: st.Dev, Ino: st.Ino}, nil
}
