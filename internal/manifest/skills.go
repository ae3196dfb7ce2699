package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/scan"
)

// SkillFile is a file of a skill, by its path below the directory of all skills.
type SkillFile struct {
	Path    string // NAME/SKILL.md
	Content []byte
	Exec    bool
}

// Bounds of the skills' files.
const (
	maxSkillFiles = 1000
	maxSkillFile  = 2 << 20
	maxSkills     = 8 << 20 // of one agent, together
)

// skillDirs lists the directories of skills, in order of search. A repository is not
// among them: its agents choose from the user's skills.
func skillDirs(w Where) (dirs []string) {
	if w.Config != "" {
		dirs = append(dirs, filepath.Join(w.Config, "skills"))
	}
	if w.Home != "" {
		dirs = append(dirs, filepath.Join(w.Home, botBottle, "skills"), filepath.Join(w.Home, ".claude", "skills"))
	}
	return dirs
}

// ReadSkills reads the skills that an agent names. What is read goes inside: so it
// must be the user's own, lie in the skill, and hold nothing that looks like a
// secret. The second result is for records.
func ReadSkills(w Where, names []Value[string]) (out []SkillFile, read []File, err error) {
	r := &skillReader{where: w}
	if w.Repo != "" {
		if r.repo, err = filepath.EvalSymlinks(w.Repo); err != nil {
			return nil, nil, fmt.Errorf("look for skills: %w", err)
		}
	}
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name.V] {
			continue
		}
		seen[name.V] = true
		dir, err := r.find(name)
		if err == nil {
			err = r.read(name, dir)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return r.out, r.files, nil
}

type skillReader struct {
	where Where
	repo  string // without links
	out   []SkillFile
	files []File
	bytes int64
}

func (r *skillReader) find(name Value[string]) (string, error) {
	dirs := skillDirs(r.where)
	for _, d := range dirs {
		dir := filepath.Join(d, name.V)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if _, err := trusted(d); err != nil {
			return "", err
		}
		return dir, nil
	}
	return "", document.Error{name.From.problem(fmt.Sprintf("no skill is called %q (looked in %s)", name.V, strings.Join(dirs, ", ")), "make "+filepath.Join(dirs[0], name.V, "SKILL.md")+", or leave it out")}
}

// read reads all of a skill. The skill itself may be a link, as people keep such
// things elsewhere; within it no link leads out.
func (r *skillReader) read(name Value[string], dir string) error {
	bad := func(file string, line int, what, advice string) error {
		p := document.Problem{File: file, Line: line, What: what + " (a skill of " + name.From.String() + ")", Advice: advice}
		if line > 0 {
			p.Column = 1
		}
		return document.Error{p}
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return bad(dir, 0, "can't be read: "+reason(err), "")
	}
	if r.repo != "" && within(real, r.repo) && !within(dir, r.repo) && !within(dir, r.where.Repo) {
		return bad(dir, 0, "leads into "+r.repo+", where an agent may have written it", "copy the skill instead")
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return bad(dir, 0, "can't be read: "+reason(err), "a skill is a directory with a file SKILL.md")
	}
	defer root.Close()
	found := false
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		file := filepath.Join(dir, p)
		if err != nil {
			return bad(file, 0, "can't be read: "+reason(err), "")
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir // of a skill that was cloned
		}
		// Where a link leads to out of the root, this is an error.
		f, err := root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil && d.Type()&fs.ModeSymlink != 0 {
			return bad(file, 0, "is a link that leads out of the skill, or nowhere", "put the file itself there")
		}
		if err != nil {
			return bad(file, 0, "can't be read: "+reason(err), "")
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return bad(file, 0, err.Error(), "")
		}
		if what, advice := others(&st); what != "" {
			return bad(file, 0, what, advice)
		}
		switch {
		case d.IsDir():
			return nil
		case st.Mode&unix.S_IFMT != unix.S_IFREG:
			return bad(file, 0, "is no regular file", "a skill has files and directories; take this one out")
		case len(r.out) == maxSkillFiles:
			return bad(file, 0, fmt.Sprintf("is one file more than %d", maxSkillFiles), "leave out what the skill does not need")
		}
		b, err := io.ReadAll(io.LimitReader(f, maxSkillFile+1))
		r.bytes += int64(len(b))
		switch {
		case err != nil:
			return bad(file, 0, "can't be read: "+reason(err), "")
		case len(b) > maxSkillFile:
			return bad(file, 0, fmt.Sprintf("has more than %d MiB", maxSkillFile>>20), "leave it out")
		case r.bytes > maxSkills:
			return bad(file, 0, fmt.Sprintf("is too much: the skills of an agent have %d MiB at most", maxSkills>>20), "leave out what they don't need")
		}
		if at, rule, err := looksSecret(b); err != nil {
			return bad(file, 0, "can't be looked at for secrets: "+err.Error(), "")
		} else if rule != "" {
			return bad(file, 1+bytes.Count(b[:at], []byte("\n")), "looks like a secret ("+rule+"), and would come inside", "take it out; a route can put it on requests (egress.routes: token_env)")
		}
		r.out = append(r.out, SkillFile{Path: path.Join(name.V, p), Content: b, Exec: st.Mode&0o100 != 0})
		r.files = append(r.files, File{Path: file, Sum: sha256.Sum256(b)})
		found = found || p == "SKILL.md"
		return nil
	})
	if err == nil && !found {
		return bad(dir, 0, "has no file SKILL.md", "that is where a skill says what it is for")
	}
	return err
}

// looksSecret returns the first token in b, and the rule that found it.
func looksSecret(b []byte) (at int64, rule string, err error) {
	rules, err := tokens()
	if err != nil {
		return 0, "", err
	}
	hits, err := rules.Check(scan.Options{Place: "skill"}, b)
	for _, h := range hits {
		if !h.Warning {
			return min(max(h.Offset, 0), int64(len(b))), h.Rule, nil
		}
	}
	return 0, "", err
}

// reason returns err without the path, which the message has already.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
