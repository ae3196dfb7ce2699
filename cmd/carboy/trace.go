//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
)

const traceLong = `Show what happened inside a run, one fact a line, as the kernel inside saw it: which
programs ran, which files were opened, sought in vain, written, moved and removed,
which sockets were made, which rights were requested. Every run is traced. The command
can neither turn that off nor forge it; text that could only be copied from its memory
is marked "claimed".

The columns are the time since the run's start in seconds, the process, its action, the
error if it failed, and the object. --follow continues until the run has ended. --path
takes * (not across slashes), ** and ?; a pattern without a slash matches the last part
of a path. With --json every line is an object; the schema is
docs/schemas/trace.v1.json. docs/trace.md explains the facts.`

const traceExample = `  carboy trace                                  the newest run here
  carboy trace --kind exec                      which programs ran
  carboy trace --path '/etc/**'                 what it looked at in /etc
  carboy trace --path '*.pem' --path id_*       keys that it looked for
  carboy trace --denied                         what was not permitted
  carboy trace --follow --kind exec,net         as it happens
  carboy trace --json | jq -r 'select(.op == "unlink") | .path'`

type traceFlags struct {
	follow, denied, json bool
	kinds                kindList
	paths                globList
	pids                 pidList
}

func (a *app) traceCmd() *cobra.Command {
	f := &traceFlags{}
	cmd := &cobra.Command{
		Use: "trace [RUN]", Short: "show what happened inside a run, fact by fact", Long: traceLong, Example: traceExample, GroupID: "look",
		Args: atMostRun, ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.readRun(cmd, args, f.follow, func(ctx context.Context, c *carboy.Client, m store.Meta) error {
				return a.trace(ctx, c, m, f)
			})
		},
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "continue until the run has ended")
	cmd.Flags().Var(&f.kinds, "kind", "only these kinds: exec, file, net, proc, priv")
	cmd.Flags().Var(&f.paths, "path", "only paths that match; may be repeated")
	cmd.Flags().Var(&f.pids, "pid", "only this process; may be repeated")
	cmd.Flags().BoolVar(&f.denied, "denied", false, "only what was refused")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object per line")
	cmd.RegisterFlagCompletionFunc("kind", completeKinds)
	cmd.RegisterFlagCompletionFunc("path", cobra.NoFileCompletions)
	cmd.RegisterFlagCompletionFunc("pid", cobra.NoFileCompletions)
	return cmd
}

// readRun calls show for a run. It is no error if the reader of stdout goes away or, with
// follow, if a signal ends it.
func (a *app) readRun(cmd *cobra.Command, args []string, follow bool, show func(context.Context, *carboy.Client, store.Meta) error) error {
	return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
		m, err := find(ctx, c, arg(args))
		if err != nil {
			return err
		}
		err = show(ctx, c, m)
		if errors.Is(err, unix.EPIPE) || follow && ctx.Err() != nil {
			return nil // who read it has seen enough
		}
		return err
	})
}

// kindList is a repeatable flag that holds kinds, separated by commas.
type kindList []trace.FactKind

func (v *kindList) Set(s string) error {
	for k := range strings.SplitSeq(s, ",") {
		if !slices.Contains(trace.Kinds(), trace.FactKind(k)) {
			return fmt.Errorf("want some of %s", strings.Join(kindNames(), ", "))
		}
		*v = append(*v, trace.FactKind(k))
	}
	return nil
}

func (v *kindList) String() string {
	var out []string
	for _, k := range *v {
		out = append(out, string(k))
	}
	return strings.Join(out, ",")
}
func (v *kindList) Type() string    { return "KIND,..." }
func (v *kindList) example() string { return "exec,net" }

func kindNames() []string {
	all := kindList(trace.Kinds())
	return strings.Split(all.String(), ",")
}

// completeKinds completes the last kind of a list.
func completeKinds(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	done := prefix[:strings.LastIndexByte(prefix, ',')+1]
	var out []cobra.Completion
	for _, k := range kindNames() {
		if !slices.Contains(strings.Split(done, ","), k) {
			out = append(out, done+k)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// globList is a repeatable flag that holds patterns.
type globList struct {
	globs []trace.Glob
	text  []string
}

func (v *globList) Set(s string) error {
	g, err := trace.ParseGlob(s)
	if err == nil {
		v.globs, v.text = append(v.globs, g), append(v.text, s)
	}
	return err
}

func (v *globList) String() string  { return strings.Join(v.text, " ") }
func (v *globList) Type() string    { return "GLOB" }
func (v *globList) example() string { return "'/etc/**'" }

// pidList is a repeatable flag that holds process IDs.
type pidList []uint32

func (v *pidList) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 {
		return errors.New("not the number of a process")
	}
	*v = append(*v, uint32(n))
	return nil
}

func (v *pidList) String() string  { return strings.Trim(fmt.Sprint([]uint32(*v)), "[]") }
func (v *pidList) Type() string    { return "PID" }
func (v *pidList) example() string { return "2" }

// followPoll is the interval at which a live trace is read.
const followPoll = 200 * time.Millisecond

// overPolls is the number of reads without news after which trace asks whether the run is
// over: a run that died does not end its trace.
const overPolls = 5

// trace prints a trace to its end or, without --follow, as far as it is written.
func (a *app) trace(ctx context.Context, c *carboy.Client, m store.Meta, f *traceFlags) error {
	r, err := a.openTrace(ctx, c, m, f.follow)
	if err != nil {
		return err
	}
	defer r.Close()
	out := a.stdout
	if !f.json {
		out = a.shown()
	}
	p := &tracePrinter{
		out: bufio.NewWriterSize(out, 64<<10), json: f.json, color: a.color(a.stdout),
		filter: trace.Filter{Kinds: f.kinds, Paths: f.paths.globs, PIDs: f.pids, Denied: f.denied},
	}
	p.begun = r.Begun()
	if m.Started != nil {
		p.begun = *m.Started
	}
	p.head(r)
	for over, looked := false, 0; ; {
		err := p.rest(ctx, r, a)
		if err == nil {
			err = p.out.Flush()
		}
		if err != nil {
			return err
		}
		if !f.follow || over || r.Tail().Ended {
			break
		}
		// The run died if its trace has no end. It may have written facts between the
		// last read and its death.
		if looked++; looked%overPolls == 0 {
			if over, err = c.Over(ctx, m.ID); err != nil {
				return err
			}
		}
		if err := wait(ctx, followPoll); err != nil {
			return err
		}
	}
	return a.endTrace(ctx, c, m, r, p)
}

// openTrace opens the trace of m. With follow it waits until there is one or the run is over.
func (a *app) openTrace(ctx context.Context, c *carboy.Client, m store.Meta, follow bool) (*trace.Reader, error) {
	for {
		r, err := c.Trace(m.ID)
		if !follow || !errors.Is(err, carboy.ErrNoTrace) && !errors.Is(err, trace.ErrNoHead) {
			return r, err
		}
		if over, oerr := c.Over(ctx, m.ID); oerr != nil || over {
			return nil, errors.Join(err, oerr)
		}
		if err := wait(ctx, followPoll); err != nil {
			return nil, err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tracePrinter prints facts for people or for programs.
type tracePrinter struct {
	out         *bufio.Writer
	json, color bool
	filter      trace.Filter
	begun       time.Time

	shown, read, damaged uint64
}

// rest prints the facts up to the end of what is written.
func (p *tracePrinter) rest(ctx context.Context, r *trace.Reader, a *app) error {
	for {
		var f trace.Fact
		var damage *trace.DamageError
		err := r.Next(&f)
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, &damage):
			p.damaged++
			if p.json {
				err = p.line(damage.Line())
			} else {
				err = p.out.Flush()
				a.say(redText, "%s", errorLine(damage))
			}
			if err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		p.read++
		if p.read%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if !p.filter.Match(&f) {
			continue
		}
		p.shown++
		if p.json {
			err = p.line(f.Line())
		} else {
			err = p.fact(&f)
		}
		if err != nil {
			return err
		}
	}
}

func (p *tracePrinter) line(v any) error {
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (p *tracePrinter) head(r *trace.Reader) {
	if p.json {
		p.line(trace.HeadLine{Type: "trace", Schema: trace.Schema, Run: r.Run(), Begun: r.Begun().UTC()})
		return
	}
	fmt.Fprint(p.out, p.paint(boldText, fmt.Sprintf("%8s %5s %-8s %-12s %s", "TIME", "PID", "WHAT", "FAILED", "ON")), "\n")
}

func (p *tracePrinter) paint(c tone, s string) string {
	if !p.color {
		return s
	}
	return c.paint(s)
}

// maxArguments bounds the part of a command line that is shown, in bytes.
const maxArguments = 400

// fact prints a fact on one line for people. It does not shorten paths, which are what
// people look for.
func (p *tracePrinter) fact(f *trace.Fact) error {
	failed := trace.ErrnoName(f.Errno)
	c := plainText
	switch {
	case f.Denied():
		c = redText
	case f.Errno != 0:
		c = dimText
	}
	on := onWhat(f)
	if names := f.Flags.Names(); f.Flags&^(trace.Miss|trace.Asked) != 0 {
		names = slices.DeleteFunc(names, func(n string) bool { return n == "miss" || n == "asked" })
		on += " [" + strings.Join(names, ", ") + "]"
	}
	since := f.When().Sub(p.begun).Seconds()
	_, err := fmt.Fprint(p.out, p.paint(c, fmt.Sprintf("%8.3f %5d %-8s %-12s %s", since, f.PID, f.Op, failed, on)), "\n")
	return err
}

// word quotes a word of a command line, so that the words stay distinct.
func word(s string) string {
	s = safetext.String(s, maxArguments)
	if s == "" || strings.ContainsAny(s, " \t\"'\\$`&|;<>()*?[]#~!{}") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// onWhat returns the object of a fact, safe to print.
func onWhat(f *trace.Fact) string {
	path := func(s string) string { return safetext.Path([]byte(s)) }
	var b strings.Builder
	if f.Path != "" && f.Op != trace.Caps && f.Op != trace.Ptrace && f.Op != trace.Mount {
		b.WriteString(path(f.Path))
	}
	switch f.Op {
	case trace.Exec:
		if len(f.Args) > 0 {
			words := make([]string, len(f.Args))
			for i, w := range f.Args {
				words[i] = word(w)
			}
			b.WriteString(": " + safetext.String(strings.Join(words, " "), maxArguments))
		}
		if strings.Contains(f.Path2, "/") && f.Path2 != f.Path {
			b.WriteString(" (for " + path(f.Path2) + ")")
		}
		return b.String()
	case trace.Rename, trace.Link, trace.Symlink, trace.Readlink, trace.Accept, trace.Chroot:
		if f.Path2 != "" {
			b.WriteString(" -> " + path(f.Path2))
		}
	}
	if d := f.Detail(); d != "" && d != f.Path {
		d = safetext.String(d, maxArguments)
		if b.Len() == 0 {
			return d
		}
		b.WriteString(" (" + d + ")")
	}
	return b.String()
}

// endTrace says how the trace ends, what it lacks, and whether its digest is the one in
// the receipt.
func (a *app) endTrace(ctx context.Context, c *carboy.Client, m store.Meta, r *trace.Reader, p *tracePrinter) error {
	t := r.Tail()
	if p.json {
		if err := p.line(t.Line(p.shown, p.damaged)); err != nil {
			return err
		}
	}
	if err := p.out.Flush(); err != nil {
		return err
	}
	m, err := c.Find(ctx, string(m.ID), "")
	if err != nil {
		return err
	}
	if !p.json {
		a.sayTail(m, &t)
	}
	if p.damaged > 0 {
		return fmt.Errorf("the trace of run %s is damaged", m.ID)
	}
	if !m.State.Over() {
		return nil
	}
	rec, err := c.Receipt(ctx, m.ID)
	if err != nil || rec.Trace == nil || rec.Trace.Digest == "" {
		return err
	}
	if got := hex.EncodeToString(t.Digest); got != rec.Trace.Digest {
		return fmt.Errorf("the trace of run %s does not match its receipt: it was changed afterwards", m.ID)
	}
	return nil
}

// sayTail prints on stderr what the trace lacks.
func (a *app) sayTail(m store.Meta, t *trace.Tail) {
	if n := t.Dropped; n > 0 {
		a.say(redText, "%d facts were lost on their way out of the bottle", n)
	}
	for _, k := range append(trace.Kinds(), "") {
		if n := t.Unkept.Of(k); n > 0 {
			a.say(plainText, "%d facts of kind %s are only counted: the trace had reached its bound", n, first(string(k), "unknown"))
		}
	}
	switch {
	case t.Reason != "":
		a.say(redText, "the trace stops before the run's end: %s", safetext.String(t.Reason, 300))
	case t.Ended:
	case m.State == store.Lost:
		a.say(redText, "carboy died during this run; its trace ends at fact %d", t.Last)
	case m.State.Over():
		a.say(redText, "the trace has no end: what came after fact %d is missing", t.Last)
	}
}
