//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/pager"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// runRef matches arguments that name a run. Any other argument is a path. A path that
// matches can be written ./path.
var runRef = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^0[0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{5,25}$`) })

// target splits [RUN] [PATH...]. The name of a bottle can name its run. Arguments after
// -- are paths.
func (a *app) target(ctx context.Context, c *carboy.Client, cmd *cobra.Command, args []string) (ref string, paths []string, err error) {
	if len(args) == 0 || cmd.ArgsLenAtDash() == 0 {
		return "", args, nil
	}
	name := args[0]
	if runRef().MatchString(name) {
		return name, args[1:], nil
	}
	if !store.ValidSlug(name) {
		return "", args, nil
	}
	own, err := c.Find(ctx, name, "")
	none := errors.Is(err, store.ErrNotFound)
	if err != nil && !none {
		return "", nil, err
	}
	ref = name
	if none || own.Changes.Settled() {
		ref, err = a.called(ctx, c, name, carboy.BottleRunning, carboy.BottleFrozen, carboy.BottleKept)
	}
	if none && ref == name || err != nil {
		return "", args, err
	}
	_, err = os.Lstat(name)
	there := err == nil
	if m, set, err := changes(ctx, c, ""); err == nil && !there {
		path := fromHere(m, args[:1])
		_, _, err := set.Choose(path, false)
		there = err == nil
	}
	if there {
		return "", nil, usagef("carboy "+cmd.Name()+" ./"+name+" for the path; carboy list shows the bottle's runs, by which it can be named too", "%s: %s is a bottle, and a path here", cmd.Name(), name)
	}
	return ref, args[1:], nil
}

// called returns the name of the bottle that a person means by a name. It says so if that
// is not the one of exactly this name, or not the only one that it could be.
func (a *app) called(ctx context.Context, c *carboy.Client, name string, states ...carboy.BottleState) (string, error) {
	slug, others, err := c.Called(ctx, name, states...)
	switch {
	case err != nil:
	case len(others) > 0:
		a.say(plainText, "this is bottle %s; there is %s too", name, strings.Join(others, ", "))
	case slug != name:
		a.say(plainText, "no bottle %s is %s; this is %s", name, strings.Join(fault.Mapped(states, func(s carboy.BottleState) string { return string(s) }), " or "), slug)
	}
	return slug, err
}

// findRunning returns the run that ref names, and of a bottle's name the one that runs.
func (a *app) findRunning(ctx context.Context, c *carboy.Client, ref string) (store.Meta, error) {
	ref, err := a.called(ctx, c, ref, carboy.BottleRunning)
	if err != nil {
		return store.Meta{}, err
	}
	return find(ctx, c, ref)
}

// find returns the run that ref names. "" means the newest run of this directory, or of
// the nearest directory above that has one.
func find(ctx context.Context, c *carboy.Client, ref string) (store.Meta, error) {
	if ref != "" {
		return c.Find(ctx, ref, "")
	}
	wd, err := os.Getwd()
	if err != nil {
		return store.Meta{}, fmt.Errorf("find the current directory: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		m, err := c.Find(ctx, "", dir)
		if err == nil || !errors.Is(err, store.ErrNotFound) {
			return m, err
		}
		if dir == filepath.Dir(dir) {
			_, err := c.Find(ctx, "", wd)
			return store.Meta{}, err
		}
	}
}

// fromHere turns paths relative to the current directory into paths of the workspace.
func fromHere(m store.Meta, paths []string) []string {
	wd, err := os.Getwd()
	ws := string(m.Workspace.Path)
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = p
		if err == nil && !filepath.IsAbs(p) && wd != ws && strings.HasPrefix(wd, ws+"/") {
			out[i] = filepath.Join(wd, p)
		} else if strings.HasPrefix(p, "./") {
			out[i] = filepath.Clean(p)
		}
	}
	return out
}

const diffLong = `Show what a run changed, compared with the host's directory as it is now. Names and
contents come from the bottle, so control characters are escaped: the output is for
reading, not for patch(1). For each protected path it says why it is protected.

Ignored paths are counted in one line: those that .gitignore names, and what is in
node_modules, __pycache__, .venv and marked caches. --ignored shows them, and so does
naming them.`

func (a *app) diffCmd() *cobra.Command {
	var stat, asJSON, noPager bool
	var o change.DiffOptions
	cmd := &cobra.Command{
		Use: "diff [RUN|BOTTLE] [PATH...]", Short: "show what a run changed", Long: diffLong, GroupID: "main",
		Example:           "  carboy diff\n  carboy diff --stat\n  carboy diff 01k9x3m7 src/\n  carboy diff reviewer      # the newest run of a bottle",
		ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				ref, paths, err := a.target(ctx, c, cmd, args)
				if err != nil {
					return err
				}
				m, set, err := changes(ctx, c, ref)
				if err != nil {
					return err
				}
				var refs []change.RefChange
				if len(paths) == 0 {
					if refs, err = c.Refs(ctx, m.ID); err != nil {
						return err
					}
				}
				if asJSON {
					return a.printJSON(struct {
						*change.Set
						Refs []change.RefChange `json:"refs,omitempty"`
					}{set, refs})
				}
				o.Colour, o.Paths, o.Refs = a.color(a.stdout), fromHere(m, paths), refs
				return a.inPages(ctx, !noPager, func(out io.Writer) error {
					if stat {
						return a.printStat(out, set, o, len(set.Changes))
					}
					_, err := set.Diff(out, o)
					return err
				})
			})
		},
	}
	cmd.Flags().BoolVar(&noPager, "no-pager", false, "print all at once, in a terminal too")
	cmd.Flags().BoolVar(&stat, "stat", false, "only the list of paths")
	cmd.Flags().BoolVar(&o.Git, "git", false, "show git's own files too, which are never copied")
	cmd.Flags().BoolVar(&o.Ignored, "ignored", false, "show ignored paths too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the changes as JSON")
	return cmd
}

// inPages shows what show writes, a screen at a time if pages is set and a person looks at
// it in a terminal. It is no error if the reader of stdout goes away.
func (a *app) inPages(ctx context.Context, pages bool, show func(io.Writer) error) error {
	if pages && isTerminal(a.stdin) && a.redraws(a.stdout) {
		var text strings.Builder
		if err := show(a.shownTo(&text)); err != nil {
			return err
		}
		return pager.Show(ctx, text.String(), pager.Options{In: a.stdin, Out: a.stdout.(*os.File), Color: a.color(a.stdout)})
	}
	err := show(a.shown())
	if errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// changes returns a run and its changes.
func changes(ctx context.Context, c *carboy.Client, ref string) (store.Meta, *change.Set, error) {
	m, err := find(ctx, c, ref)
	if ref != "" && errors.Is(err, store.ErrNotFound) {
		err = &advisedError{err, "carboy list shows the runs; a path that looks like a run is written ./" + ref}
	}
	if err != nil {
		return m, nil, err
	}
	set, err := c.Changes(m.ID)
	return m, set, err
}

var kindMarks = map[change.Kind]string{change.Add: "A", change.Modify: "M", change.Delete: "D", change.Mode: "m", change.Retype: "T"}

// printStat lists the changes that o selects, at most limit of them, and counts all.
func (a *app) printStat(w io.Writer, set *change.Set, o change.DiffOptions, limit int) error {
	stat, err := set.Diff(io.Discard, change.DiffOptions{Paths: o.Paths, Git: o.Git, Ignored: o.Ignored, Stat: true})
	if err != nil {
		return err
	}
	sel, _, err := set.Choose(o.Paths, o.Ignored)
	if err != nil {
		return err
	}
	n := 0
	out := bufio.NewWriter(w)
	for _, n := range set.Notes {
		fmt.Fprintf(out, " # %s\n", safetext.String(n, 500))
	}
	for i := range o.Refs {
		printRef(out, &o.Refs[i])
	}
	for i := range set.Changes {
		c := &set.Changes[i]
		if !sel[i] || !o.Git && c.Bookkeeping() {
			continue
		}
		if n++; n <= limit {
			fmt.Fprintf(out, " %s  %s%s\n", kindMarks[c.Kind], safetext.Path([]byte(c.Path)), remark(c))
		}
	}
	if n > limit {
		fmt.Fprintf(out, " … and %d more\n", n-limit)
	}
	fmt.Fprintf(out, " %s, %s added, %d removed", number(n, "path", "paths"), number(stat.Added, "line", "lines"), stat.Removed)
	if stat.Truncated {
		fmt.Fprint(out, " and more")
	}
	if stat.Bookkeeping > 0 {
		fmt.Fprintf(out, "; and %s of git's own", number(stat.Bookkeeping, "path", "paths"))
	}
	if stat.Ignored > 0 {
		fmt.Fprintf(out, "; and %s: --ignored shows them", number(stat.Ignored, "ignored path", "ignored paths"))
	}
	fmt.Fprintln(out)
	return out.Flush()
}

// printRef prints what a person must know about a reference before landing it.
func printRef(out io.Writer, r *change.RefChange) {
	fmt.Fprintf(out, " %s  %s", safetext.Path([]byte(r.ID())), r.Summary())
	switch why, _ := r.Held(&change.LandOptions{IncludeProtected: true}); {
	case why != "":
		fmt.Fprintf(out, "  (stays behind: %s)", safetext.String(why, 300))
	case len(r.Protected) > 0:
		fmt.Fprintf(out, "  (protected: %s)", safetext.String(r.Protected[0].Why, 300))
	}
	fmt.Fprintln(out)
	const shown = 10
	for i, c := range r.Commits[:min(len(r.Commits), shown)] {
		fmt.Fprintf(out, "      %s %s: %s\n", c.ID[:min(len(c.ID), 10)], safetext.String(string(c.Author), 60), safetext.String(string(c.Subject), 100))
		if i == shown-1 && r.Count > shown {
			fmt.Fprintf(out, "      … and %d more\n", r.Count-shown)
		}
	}
	unseen := r.Unseen()
	for i, f := range unseen {
		if i == shown {
			fmt.Fprintf(out, "      … and %d more that differ\n", len(unseen)-shown)
			break
		}
		fmt.Fprintf(out, "      %s  %s  (the work tree has other content; carboy diff shows the commit's)\n", f.Status, safetext.Path([]byte(f.Path)))
	}
}

// remark returns what a person must know about a change before landing it.
func remark(c *change.Change) string {
	switch {
	case c.Unlandable != "":
		return "  (cannot land: " + safetext.String(c.Unlandable, 200) + ")"
	case c.BaseMoved != "":
		return "  (changed on the host meanwhile: " + safetext.String(c.BaseMoved, 200) + ")"
	case len(c.Protected) > 0:
		return "  (protected: " + safetext.String(c.Protected[0].Why, 200) + ")"
	case c.Type == change.Symlink && c.Kind != change.Delete:
		return " -> " + safetext.Path([]byte(c.Target))
	}
	return ""
}

const landLong = `Take a run's changes into the workspace on the host: all of them, or the paths
that you name. First it shows what would land, and asks. Everything lands or nothing,
by one rename per file. It never follows a symbolic link, and refuses if a file on the
host has changed since the run began. carboy undo takes it back.

Commits land as commits: the branch that is checked out goes forward. Other
references stay behind until you say yes to them or name them with
--include-refs. Nothing else of git is copied: no hook, configuration or stash.

Ignored paths, see carboy diff --help, stay behind unless you say --ignored or name them.

Some files run code on the host, or make programs trust more, just by being there, in
the work tree or in a commit: settings of agents and editors, and links that lead out
of the workspace. These protected paths stay behind unless you say --include-protected;
better, name them one by one.`

const landExample = `  carboy land                        everything of the last run here
  carboy land src README.md          only these
  carboy land --yes                  without asking, for scripts
  carboy land --include-refs refs/heads/topic
  carboy land --include-protected .vscode/settings.json`

type landFlags struct {
	yes, protected, ignored, incomplete, json bool
	refs                                      []string
}

func (a *app) landCmd() *cobra.Command {
	f := &landFlags{}
	cmd := &cobra.Command{
		Use: "land [RUN|BOTTLE] [PATH...]", Short: "take a run's changes into the workspace", Long: landLong, Example: landExample, GroupID: "main",
		ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				ref, paths, err := a.target(ctx, c, cmd, args)
				if err != nil {
					return err
				}
				return a.land(ctx, c, f, ref, paths)
			})
		},
	}
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "don't ask")
	cmd.Flags().BoolVar(&f.protected, "include-protected", false, "land protected paths too")
	cmd.Flags().StringArrayVar(&f.refs, "include-refs", nil, "land this reference of git too, such as refs/heads/topic; repeatable")
	cmd.Flags().BoolVar(&f.ignored, "ignored", false, "land ignored paths too")
	cmd.Flags().BoolVar(&f.incomplete, "allow-incomplete", false, "land what was kept of an incomplete set of changes")
	cmd.Flags().BoolVar(&f.json, "json", false, "print what was done as JSON")
	return cmd
}

func (a *app) land(ctx context.Context, c *carboy.Client, f *landFlags, ref string, paths []string) error {
	m, set, err := changes(ctx, c, ref)
	if err != nil {
		return err
	}
	paths = fromHere(m, paths)
	if len(set.Changes) == 0 {
		a.say(plainText, "run %s changed nothing", m.ID)
		if other := unlanded(ctx, c, m); other != "" {
			a.say(plainText, "hint: run %s waits: carboy land %s", other, other)
		}
		return a.printLanding(f, m, &change.LandReport{})
	}
	if f.yes {
		for _, n := range set.Notes {
			a.say(plainText, "%s", n)
		}
	} else {
		const asked = 40 // more than fits on a screen is not read
		var refs []change.RefChange
		if len(paths) == 0 || len(f.refs) > 0 {
			if refs, err = c.Refs(ctx, m.ID); err != nil {
				return err
			}
		}
		if err := a.printStat(a.shownTo(a.stderr), set, change.DiffOptions{Paths: paths, Refs: refs, Ignored: f.ignored}, asked); err != nil {
			return err
		}
		if err := a.confirm(ctx, "land this in "+safetext.Path([]byte(m.Workspace.Path))+"?"); err != nil {
			return err
		}
		if err := a.askRefs(ctx, f, refs); err != nil {
			return err
		}
	}
	var rep *change.LandReport
	err = a.slowly(ctx, "landing", func(ctx context.Context) (err error) {
		rep, err = c.Land(ctx, m.ID, change.LandOptions{Paths: paths, IncludeProtected: f.protected, IncludeIgnored: f.ignored, AllowIncomplete: f.incomplete, Refs: f.refs})
		return err
	})
	if err != nil {
		return err
	}
	return a.printLanding(f, m, rep)
}

// unlanded returns the newest run of m's directory whose changes wait, "" if there is none.
func unlanded(ctx context.Context, c *carboy.Client, m store.Meta) store.ID {
	l, err := c.List(ctx, store.Query{Limit: maxLookedAt, Workspace: &m.Workspace})
	if err != nil {
		return ""
	}
	for _, r := range l.Runs {
		if unlandedRun(r) && !onlyIgnored(ctx, c, r.ID) {
			return r.ID
		}
	}
	return ""
}

// askRefs asks about each reference that lands only if a person says so.
func (a *app) askRefs(ctx context.Context, f *landFlags, refs []change.RefChange) error {
	for i := range refs {
		r := &refs[i]
		why, _ := r.Held(&change.LandOptions{IncludeProtected: true, Refs: f.refs})
		if why == "" || r.Never != "" {
			continue
		}
		yes, err := a.ask(ctx, fmt.Sprintf("also %s (%s)? %s.", safetext.Path([]byte(r.ID())), r.Summary(), safetext.String(why, 200)))
		if err != nil {
			return err
		}
		if yes {
			f.refs = append(f.refs, r.ID())
		}
	}
	return nil
}

// printLanding prints what landed and what did not.
func (a *app) printLanding(f *landFlags, m store.Meta, rep *change.LandReport) error {
	if f.json {
		return a.printJSON(landJSON(m, rep))
	}
	const shown = 10
	protected, ref := 0, ""
	for i, w := range rep.Withheld {
		if len(w.Reasons) > 0 {
			protected++
		}
		if w.Ref && ref == "" {
			ref = w.Path
		}
		if i < shown {
			a.say(plainText, "left behind: %s: %s", safetext.Path([]byte(w.Path)), safetext.String(withheldWhy(w), 300))
		}
	}
	if n := len(rep.Withheld) - shown; n > 0 {
		a.say(plainText, "left behind: %d more", n)
	}
	if protected > 0 {
		a.say(plainText, "hint: look at them with carboy diff; --include-protected PATH takes them")
	}
	if rep.Ignored > 0 {
		a.say(plainText, "left behind: %s; carboy land %s --ignored takes them", number(rep.Ignored, "ignored path", "ignored paths"), m.ID)
	}
	if ref != "" {
		a.say(plainText, "hint: carboy land %s --include-refs %s takes it", m.ID, safetext.Path([]byte(ref)))
	}
	for i := range rep.Refs {
		r := &rep.Refs[i]
		a.say(plainText, "%s: %s", safetext.Path([]byte(r.ID())), r.Summary())
	}
	switch {
	case len(rep.Landed) > 0 || len(rep.Refs) > 0:
		a.say(greenText, "landed %s; carboy undo %s takes it back", landedWhat(rep), m.ID)
	case len(rep.Already) > 0:
		a.say(plainText, "nothing to do: the workspace has it all already")
	case len(rep.Withheld)+rep.Ignored > 0:
		a.say(plainText, "nothing landed")
	}
	return nil
}

func landedWhat(rep *change.LandReport) string {
	s := number(len(rep.Landed), "path", "paths")
	if n := len(rep.Refs); n > 0 {
		s += " and " + number(n, "reference", "references")
	}
	return s
}

func withheldWhy(w change.Withheld) string {
	var s []string
	for _, r := range w.Reasons {
		s = append(s, "protected: "+r.Why)
	}
	if w.Why != "" {
		s = append(s, w.Why)
	}
	return strings.Join(s, "; ")
}

type withheldJSON struct {
	Path      change.Bytes    `json:"path"`
	Protected []change.Reason `json:"protected,omitempty"`
	Why       string          `json:"why,omitempty"`
}

type landingJSON struct {
	Schema   string         `json:"schema"`
	Run      store.ID       `json:"run"`
	Landing  string         `json:"landing,omitempty"`
	Landed   []change.Bytes `json:"landed"`
	Already  []change.Bytes `json:"already"`
	Refs     []string       `json:"refs,omitempty"`
	Withheld []withheldJSON `json:"withheld"`
	Ignored  int            `json:"ignored,omitempty"`
}

func landJSON(m store.Meta, rep *change.LandReport) landingJSON {
	out := landingJSON{Schema: "carboy.dev/land/v1", Run: m.ID, Landing: rep.ID, Landed: rawPaths(rep.Landed), Already: rawPaths(rep.Already), Withheld: []withheldJSON{}, Ignored: rep.Ignored}
	for i := range rep.Refs {
		out.Refs = append(out.Refs, rep.Refs[i].ID())
	}
	for _, w := range rep.Withheld {
		out.Withheld = append(out.Withheld, withheldJSON{change.Bytes(w.Path), w.Reasons, w.Why})
	}
	return out
}

func rawPaths(s []string) []change.Bytes {
	out := make([]change.Bytes, len(s))
	for i, p := range s {
		out[i] = change.Bytes(p)
	}
	return out
}

const undoLong = `Undo a landing: restore what it replaced or removed, and remove what it made. It refuses
if one of those files was edited since.`

func (a *app) undoCmd() *cobra.Command {
	var last, yes, asJSON bool
	cmd := &cobra.Command{
		Use: "undo [RUN]", Short: "undo a landing", Long: undoLong, GroupID: "main",
		Example:           "  carboy undo                       what was landed of the newest run here; asks\n  carboy undo 01k9x3m7\n  carboy undo --last 01k9x3m7       only the newest landing of that run",
		ValidArgsFunction: a.completeRuns,
		Args:              atMostRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				m, err := find(ctx, c, arg(args))
				if err != nil {
					return err
				}
				o := change.UndoOptions{Last: last}
				if len(args) == 0 && !yes {
					o.Confirm = func(r change.UndoReport) error {
						return a.confirm(ctx, fmt.Sprintf("undo what landed from run %s (%s)?", m.ID, undone(r)))
					}
				}
				rep, err := c.Undo(ctx, m.ID, o)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(map[string]any{"schema": "carboy.dev/undo/v1", "run": m.ID, "undone": rep.Undone, "restored": rawPaths(rep.Restored), "refs": rep.Refs})
				}
				a.say(greenText, "restored %s; the changes of run %s can be landed again", undone(*rep), m.ID)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "only the newest landing of the run")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask when no run is named")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	return cmd
}

// undone counts what an undo restores, such as "3 paths and 1 reference".
func undone(r change.UndoReport) string {
	paths, refs := number(len(r.Restored), "path", "paths"), number(len(r.Refs), "reference", "references")
	switch {
	case len(r.Refs) == 0:
		return paths
	case len(r.Restored) == 0:
		return refs
	}
	return paths + " and " + refs
}

// confirm asks a question on the terminal. The default answer is no. Without a terminal
// it returns an error.
func (a *app) confirm(ctx context.Context, question string) error {
	yes, err := a.ask(ctx, question)
	if err == nil && !yes {
		err = errNotConfirmed
	}
	return err
}

// ask is confirm for a question to which no is an answer like another.
func (a *app) ask(ctx context.Context, question string) (bool, error) {
	if !isTerminal(a.stdin) || !isTerminal(a.stderr) {
		return false, usagef("add --yes to go ahead without being asked", "%s nobody can be asked without a terminal", question)
	}
	fmt.Fprintf(a.stderr, "carboy: %s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // ends with the answer or the process
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return false, ctx.Err()
	case s := <-answer:
		s = strings.ToLower(strings.TrimSpace(s))
		return s == "y" || s == "yes", nil
	}
}

// errNotConfirmed means that a person said no to a question: a cancel, and no failure.
var errNotConfirmed = errors.New("not confirmed; nothing was changed")

func arg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// atMostRun checks the arguments of commands that take at most one run.
func atMostRun(cmd *cobra.Command, args []string) error {
	if len(args) <= 1 {
		return nil
	}
	return usagef(cmd.CommandPath()+" --help shows how it is used", "%s: takes one run, got %d arguments", cmd.Name(), len(args))
}

func number(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
