//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/reclaim"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const runLong = `Run a command in a bottle. It sees the workspace (this directory, unless --dir names
another) at its own path, the machine's tools read-only, and nothing else of the host:
no home, no sockets, no keys, no other processes. Its writes are kept apart until you
land them. The network refuses every name and address that you did not allow.

The exit code is the command's own; 124 if the time ran out, 125 if carboy refused or
failed, 126 and 127 if the command could not be started, 128+n if signal n ended it.
The first interrupt goes to the command; the second destroys the bottle.

Flags come before the command; its arguments follow it.`

const runExample = `  carboy run -- make test
  carboy run --allow registry.npmjs.org -- npm ci
  carboy run --allow github.com -- git clone https://github.com/golang/mod
  carboy run --allow '*.example.org:443' --env CI=1 -- ./build.sh
  carboy run -it -- bash
  carboy run --workspace none --timeout 1m --memory 512MiB -- sh -c 'echo hi'
  carboy run --mount ~/.cache/go-build:/tmp/cache --env GOCACHE=/tmp/cache -- go vet ./...
  carboy run --image python:3.13 -- python3 -c 'print(1)'
  carboy run --publish 8080 -- python3 -m http.server 8080
  carboy run --json -- make 2>build.log | jq .network`

// runFlags holds the flags of carboy run.
type runFlags struct {
	workspace    choice
	dir          string
	allow        list
	allowPrivate list
	routes       string
	credentials  list
	secrets      list
	environ      list
	mounts       list
	rootfs       string
	image        string
	publish      ports

	timeout      span
	memory, disk size
	output       size
	egress       size
	pids, cpus   whole

	interactive, tty bool
	json, quiet      bool
	supervise        bool
	policy           string
	askFor           span

	pool     whole
	poolIdle span
}

func (a *app) runCmd() *cobra.Command {
	f := &runFlags{
		workspace:    choice{"overlay", "MODE", []string{"overlay", "copy", "bind", "none"}},
		allow:        list{name: "HOST[:PORT][/PATH]", eg: "example.org:443"},
		allowPrivate: list{name: "HOST[:PORT][/PATH]", eg: "10.0.0.5:5432"},
		credentials:  list{name: "NAME=VARIABLE@HOST[:SCHEME]", eg: "gh=GH_TOKEN@api.github.com:token"},
		secrets:      list{name: "NAME|FILE", eg: "DEPLOY_KEY"},
		environ:      list{name: "NAME[=VALUE]", eg: "CI=1"},
		mounts:       list{name: "SRC:DST[:ro]", eg: "/opt/data:/data:ro"},
		pids:         whole{top: 1 << 22, eg: "512"},
		cpus:         whole{top: 4096, eg: "2"},
		pool:         whole{top: maxPool, eg: "1"},
	}
	cmd := &cobra.Command{
		Use: "run [flags] -- COMMAND [ARG...]", GroupID: "main",
		Short: "run a command in a sealed bottle", Long: runLong, Example: runExample,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && f.image == "" {
				return usagef("write it after the flags: carboy run -- make test", "run: no command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runRun(cmd.Context(), f, args) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.SortFlags = false
	fl.Var(&f.workspace, "workspace", "how the command sees the directory: overlay or copy (its writes are kept for review), bind (they go to the host), none")
	fl.StringVar(&f.dir, "dir", "", "the workspace `DIR` (default: the current directory)")
	fl.Var(&f.allow, "allow", "allow TLS and HTTP to a host, on 443 and 80 unless a port is named; *.NAME allows the names below NAME; a path allows only that path and those below it; HOST:PORT/tcp allows any protocol; repeatable")
	fl.Var(&f.allowPrivate, "allow-private", "the same for private addresses; host.carboy.internal:PORT is this machine's loopback")
	fl.StringVar(&f.routes, "routes", "", "a route `FILE`: hosts, paths, methods, credentials to add and secrets to look for (carboy egress check)")
	fl.Var(&f.credentials, "credential", "add the value of a variable of yours to requests to a host, as bearer unless a scheme is named; the bottle has a placeholder; repeatable")
	fl.Var(&f.secrets, "secret", "look for the value of a variable (env:NAME) or file (file:PATH) of yours in what leaves; it does not come inside; repeatable")
	fl.BoolVar(&f.supervise, "supervise", false, "ask people about held-back values, and about routes that the command proposes by the tools at http://supervise.carboy.internal/mcp (carboy supervise)")
	fl.StringVar(&f.policy, "policy", "", "with --supervise: a `FILE` of your own with rules that answer some questions")
	a.askForFlag(fl, &f.askFor)
	fl.Var(&f.environ, "env", "set a variable, or pass the host's; repeatable")
	fl.Var(&f.mounts, "mount", "show a host path inside, read-only with :ro; repeatable")
	fl.StringVar(&f.rootfs, "rootfs", "host", "root file system: host (this machine's tools) or a `DIR`")
	fl.StringVar(&f.image, "image", "", "an image as the root file system: oci:DIR, tar:FILE, or a registry's `REF` (carboy image)")
	fl.Var(&f.publish, "publish", "make a server inside reachable on the host's loopback; repeatable")
	fl.Var(&f.timeout, "timeout", "wall clock, such as 30m")
	fl.Var(&f.memory, "memory", "memory, such as 8GiB")
	fl.Var(&f.pids, "pids", "processes and threads, such as 512")
	fl.Var(&f.disk, "disk", "bytes written, such as 20GiB")
	fl.Var(&f.cpus, "cpus", "processors, such as 2")
	fl.Var(&f.output, "output", "bytes of standard output and error together, such as 1GiB")
	fl.Var(&f.egress, "egress-bytes", "bytes that leave by the network, over all routes, such as 100MiB")
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "give the command this standard input, even if it is a terminal")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal (implies -i); Enter ~ . destroys the bottle")
	fl.BoolVar(&f.json, "json", false, "print the receipt on stdout; the command's own output goes to stderr")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only errors")
	fl.Var(&f.pool, "pool", "take a bottle that was prepared for such a run, if there is one, and keep this many prepared")
	fl.Var(&f.poolIdle, "pool-idle", "how long prepared bottles wait, such as 1h (default 15m)")
	for name, v := range map[string][]string{"workspace": f.workspace.of} {
		cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(v, cobra.ShellCompDirectiveNoFileComp))
	}
	cmd.MarkFlagFilename("routes", "yaml", "yml")
	cmd.MarkFlagDirname("dir")
	cmd.MarkFlagDirname("rootfs")
	return cmd
}

// options turns the flags into options.
func (a *app) options(f *runFlags, args []string) (carboy.RunOptions, error) {
	askFor, err := a.askFor(f.askFor)
	if err != nil {
		return carboy.RunOptions{}, err
	}
	o := carboy.RunOptions{
		Command: args, Workspace: f.dir, Mode: store.Mode(f.workspace.value),
		Allow: f.allow.values, AllowPrivate: f.allowPrivate.values, Routes: f.routes, Supervise: f.supervise, Policy: f.policy, AskFor: askFor, Credentials: f.credentials.values, Secrets: f.secrets.values, Env: f.environ.values, Mounts: f.mounts.values,
		RootFS: f.rootfs, Image: f.image, Publish: f.publish, Stdout: a.stdout, Stderr: a.stderr, Terminal: f.tty,
		Limits: bottle.Limits{
			Timeout: time.Duration(f.timeout), Memory: int64(f.memory), Disk: int64(f.disk), Output: int64(f.output), Egress: int64(f.egress),
			Pids: f.pids.n, CPUs: int(f.cpus.n),
		},
	}
	// A pipe or a file is meant for the command; a terminal only when asked.
	if f.interactive || f.tty || !isTerminal(a.stdin) {
		o.Stdin = a.stdin
	}
	if f.json {
		o.Stdout = a.stderr
	}
	if !f.tty {
		o.Stdout, o.Stderr = tame(o.Stdout), tame(o.Stderr)
	}
	switch {
	case f.tty && f.json:
		return o, usagef("leave out one of them; carboy receipt --json has the receipt afterwards", "run: --json and --tty cannot be combined")
	case f.tty && !isTerminal(a.stdin):
		return o, usagef("leave out -t, or start carboy in a terminal", "run: --tty needs a terminal as standard input")
	case f.tty && !isTerminal(a.stdout):
		return o, usagef("leave out -t, or don't redirect the output", "run: --tty needs a terminal as standard output")
	}
	return o, nil
}

// tame returns a writer that keeps a command from controlling the user's terminal:
// changing its title, writing to its clipboard, overwriting output. It is for commands
// without -t. A pipe or a file gets the bytes unchanged.
func tame(w io.Writer) io.Writer {
	if !isTerminal(w) {
		return w
	}
	return safetext.NewWriter(w, safetext.Options{})
}

// runRun runs the command in a bottle of the pool if one is ready, else in a new one.
func (a *app) runRun(ctx context.Context, f *runFlags, args []string) error {
	o, err := a.options(f, args)
	if err != nil {
		return err
	}
	if a.warm != nil {
		if err := a.warm.begin(f, &o); err != nil {
			return err
		}
		return a.runIn(ctx, a.warm.prepared.client, f, &o, a.warm.prepared.bottle.Run)
	}
	if a.poolable(f, &o) {
		if key, err := a.poolKey(&o); err == nil {
			if done, err := a.runPooled(key); done {
				return err
			}
			if ord, err := a.orderFor(f, &o, key); err == nil {
				defer refill(ord, a.env)
			}
		}
	}
	c, err := a.openFor(ctx, &o)
	if err != nil {
		return err
	}
	defer c.Close()
	return a.runIn(ctx, c, f, &o, c.Run)
}

// runIn runs the command with start and reports how it ended.
func (a *app) runIn(ctx context.Context, c *carboy.Client, f *runFlags, o *carboy.RunOptions, start func(context.Context, carboy.RunOptions) (*receipt.Receipt, error)) error {
	if f.image != "" {
		img, err := a.pull(ctx, c, f.image, carboy.PullOptions{})
		if err != nil {
			return err
		}
		o.ImageDigest = img.Digest
	}
	a.warnAboutSecrets(f)
	if o.Interrupt == nil {
		// The command decides what an interrupt means, so none may end carboy.
		interrupts := make(chan os.Signal, 4)
		signal.Notify(interrupts, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
		defer signal.Stop(interrupts)
		o.Interrupt = interrupts
	}
	n := &narrator{app: a, quiet: f.quiet, busy: f.tty}
	o.OnEvent = n.event
	told := false
	if !f.json {
		o.Answer = func(rec *receipt.Receipt, err error) {
			n.end()
			told = true
			a.tellRun(f, rec, err)
			if a.warm != nil {
				a.warm.answer(exitcode.OfCommand(rec.Exit.Code, err))
				if !f.tty {
					// A reader of the output need not wait for the records.
					a.warm.stdout.Close()
				}
			}
		}
	}
	defer reclaim.After(reclaim.Patience)()
	rec, err := start(ctx, *o)
	if rec == nil {
		return err
	}
	var unrecorded *carboy.RecordError
	switch {
	case !told:
		a.tellRun(f, rec, err)
	case errors.As(err, &unrecorded):
		a.say(plainText, "%s", errorLine(unrecorded))
	}
	if f.json {
		b, jerr := rec.Encode()
		if jerr != nil {
			return jerr
		}
		a.stdout.Write(b)
	} else if !f.quiet {
		a.tellLeft(rec)
	}
	if err != nil || a.code != 0 {
		return errReported
	}
	return nil
}

// tellRun tells people how a run ended, and sets its exit code.
func (a *app) tellRun(f *runFlags, rec *receipt.Receipt, err error) {
	a.code = rec.Exit.Code
	if err != nil {
		a.say(plainText, "%s", errorLine(err))
	}
	if tip := advice(err); tip != "" {
		a.say(plainText, "hint: %s", errorText(tip))
	}
	switch {
	case f.json:
	case !f.quiet:
		a.summary(rec)
	case err == nil && rec.Exit.Reason != receipt.Exited && rec.Exit.Reason != receipt.Signalled:
		a.ended(rec) // an error: the command did not end by itself
	}
}

// warnAboutSecrets warns about variables whose names look like secrets: the command can
// store, print and send what --env gives it.
func (a *app) warnAboutSecrets(f *runFlags) {
	for _, e := range f.environ.values {
		name, _, _ := strings.Cut(e, "=")
		if carboy.SecretName(name) {
			a.say(plainText, "warning: --env %s looks like a secret, and the command will be able to read it", safetext.String(name, 80))
		}
	}
}

// maxNarrated bounds the lines printed during a run: otherwise a bottle could print any
// number of them by making requests that are refused.
const maxNarrated = 20

// narrator prints what happens during a run.
type narrator struct {
	app    *app
	quiet  bool
	busy   bool // the command has the terminal, until what it leaves is taken out
	bottle bool // what may be reached stands in manifests, not in flags

	mu    sync.Mutex
	said  map[string]bool // the summary counts what is repeated
	lines int
	drawn bool // how far something is stands in the terminal's line
	over  bool
}

// end stops the narrator, so that no late line follows the summary.
func (n *narrator) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
	n.clear()
}

// clear removes what is drawn. n.mu is held.
func (n *narrator) clear() {
	if n.drawn {
		fmt.Fprint(n.app.stderr, clearLine)
		n.drawn = false
	}
}

func (n *narrator) event(e carboy.Event) {
	taking, service := e.Kind == "taking", e.Kind == "service"
	// While services are waited for, the agent does not have the terminal yet.
	if n.quiet || n.busy && !taking && !service || e.Kind == "started" || e.Kind == "refused" && receipt.IsTelemetry(e.Name) {
		return // of telemetry, the summary has one line
	}
	text := n.text(e)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return
	}
	if service {
		n.app.say(dimText, "%s", text)
		return
	}
	if taking && n.app.redraws(n.app.stderr) {
		n.drawn = true
		n.app.redraw(text, e.Bytes, e.Took)
		return
	}
	if n.said[text] {
		return
	}
	n.clear()
	n.lines++
	switch {
	case n.lines > maxNarrated:
		return
	case n.lines == maxNarrated:
		n.app.say(dimText, "more happened; the receipt has all of it")
		return
	}
	if n.said == nil {
		n.said = map[string]bool{}
	}
	n.said[text] = true
	c := dimText
	if slices.Contains([]string{"refused", "limit", "found"}, e.Kind) {
		c = redText
	}
	n.app.say(c, "%s", text)
}

// text says what happened in one line.
func (n *narrator) text(e carboy.Event) string {
	text := safetext.String(e.Text, 200)
	if e.Name != "" {
		what, why, _ := strings.Cut(text, ": ")
		to := eventTarget(e)
		if e.Method != "" {
			to = safetext.String(e.Method, 40) + " " + to + safetext.String(e.Path, 120)
		}
		text = fmt.Sprintf("%s: %s: %s", what, to, n.plain(why))
	}
	return text
}

// plain explains a reason, and names where a route could be written: the flag, or for a
// bottle the manifest's key.
func (n *narrator) plain(why string) string {
	where := "--allow"
	if n.bottle {
		where = "egress.routes of the bottle"
	}
	return strings.Replace(receipt.Plain(why), "no route names", "no "+where+" names", 1)
}

func eventTarget(e carboy.Event) string {
	s := safetext.String(e.Name, 260)
	if e.Port != 0 {
		s += fmt.Sprintf(":%d", e.Port)
	}
	return s
}

// summary prints how a run ended, what it changed, what was refused, and what to type
// next. The receipt has the rest.
func (a *app) summary(r *receipt.Receipt) {
	a.ended(r)
	s, reports := refusedLine(r)
	if s != "" {
		a.say(plainText, "%s (carboy receipt says why)", s)
	}
	if reports > 0 {
		a.say(dimText, "%s refused: carboy receipt", number(reports, "telemetry name", "telemetry names"))
	}
	if s, stopped := foundLine(r); s != "" {
		c := plainText
		if stopped {
			c = redText
		}
		a.say(c, "%s (carboy receipt says where)", s)
	}
	if r.Landable() {
		ref := ""
		if wd, err := os.Getwd(); err != nil || wd != string(r.Workspace.Path) {
			ref = " " + string(r.ID)
		}
		a.say(plainText, "next: carboy diff%s, then carboy land%s", ref, ref)
	}
}

func (a *app) ended(r *receipt.Receipt) {
	tone := greenText
	if r.Exit.Code != 0 {
		tone = redText
	}
	a.say(tone, "%s after %s, %s (run %s)", exitText(r.Exit), receipt.Duration(r.Duration), changesText(r), r.ID)
}

func exitText(e receipt.Exit) string {
	switch e.Reason {
	case receipt.Exited:
		return fmt.Sprintf("exit %d", e.Code)
	case receipt.Signalled:
		return "ended by " + safetext.String(e.Signal, 20)
	case receipt.Timeout:
		return "stopped (out of time)"
	case receipt.Memory:
		return "stopped (too much memory)"
	case receipt.Output:
		return "stopped (too much output)"
	case receipt.Pids:
		return "stopped (too many processes)"
	case receipt.Killed:
		return "destroyed"
	case receipt.Frozen:
		return "frozen"
	}
	return "failed"
}

func changesText(r *receipt.Receipt) string {
	c := r.Changes
	switch {
	case r.Workspace.Mode == store.Bind:
		return "changes went to the host's directory"
	case r.Workspace.Mode == store.None:
		return "no workspace"
	case c == nil:
		return "changes not collected"
	case !c.Any() && len(c.Incomplete) == 0:
		return "nothing changed"
	}
	s := number(int(c.Total), "path", "paths")
	switch {
	case c.OnlyIgnored():
		return "nothing changed but " + number(int(c.Ignored), "ignored path", "ignored paths")
	case c.References > 0 && c.Total == 0:
		s = "git's references changed"
	case c.References > 0:
		s += " and git's references changed"
	default:
		s += " changed"
	}
	var more []string
	if c.Protected > 0 {
		more = append(more, fmt.Sprintf("%d protected", c.Protected))
	}
	if c.Ignored > 0 {
		more = append(more, fmt.Sprintf("and %d ignored", c.Ignored))
	}
	if c.BaseMoved > 0 {
		more = append(more, fmt.Sprintf("%d changed on the host meanwhile", c.BaseMoved))
	}
	if len(c.Incomplete) > 0 {
		more = append(more, "incomplete")
	}
	if len(more) > 0 {
		s += " (" + strings.Join(more, ", ") + ")"
	}
	return s
}

// tellLeft says which files outside the workspace are gone with the bottle.
func (a *app) tellLeft(r *receipt.Receipt) {
	var places []string
	for i, e := range r.LeftInside() {
		if i == 3 {
			places = append(places, "…")
			break
		}
		places = append(places, number(int(e.Files), "file", "files")+" in "+safetext.String(string(e.Path), 120))
	}
	if len(places) > 0 {
		a.say(plainText, "gone with the bottle, outside the workspace: %s (--mount keeps a directory, carboy cp copies while it runs)", strings.Join(places, ", "))
	}
}

// foundLine groups what scanners found by what it was, where, and what was done about it.
// stopped means that some of it did not pass as it was.
func foundLine(r *receipt.Receipt) (line string, stopped bool) {
	const shown = 3
	rank := []receipt.Action{receipt.Blocked, receipt.Masked, receipt.Passed, receipt.Reported}
	type group struct {
		where  string
		action receipt.Action
	}
	count := map[group]int64{}
	for _, f := range r.Network.Found {
		what, way := f.Secret, " to "
		if what == "" {
			what = receipt.Plain(f.What)
		}
		if f.Inbound {
			way = " from "
		}
		where := safetext.String(what, 80) + way + safetext.String(f.Name, 100) + ", " + safetext.String(f.Place, 40)
		count[group{where, f.Action}] += f.Count
		stopped = stopped || f.Action == receipt.Blocked || f.Action == receipt.Masked
	}
	if len(count) == 0 {
		return "", false
	}
	groups := slices.SortedFunc(maps.Keys(count), func(a, b group) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, a.action), slices.Index(rank, b.action)), cmp.Compare(count[b], count[a]), cmp.Compare(a.where, b.where))
	})
	var parts []string
	for _, g := range groups[:min(len(groups), shown)] {
		parts = append(parts, fmt.Sprintf("%s: %d %s", g.where, count[g], g.action))
	}
	line = "seen: "
	if stopped {
		line = "found: "
	}
	line += strings.Join(parts, "; ")
	if n := len(groups) - shown; n > 0 {
		line += fmt.Sprintf("; and %d more", n)
	}
	return line, stopped
}

// refusedLine names the first few requests that were refused, each once. reports counts
// names of telemetry, which it does not name.
func refusedLine(r *receipt.Receipt) (line string, reports int) {
	const shown = 5
	var what []string
	seen := map[string]bool{}
	add := func(key, s string) {
		switch {
		case seen[key]:
		case receipt.IsTelemetry(key):
			reports++
		default:
			what = append(what, s)
		}
		seen[key] = true
	}
	for _, n := range r.Network.Names {
		if n.Verdict == receipt.Refused {
			add(n.Name, safetext.String(n.Name, 260))
		}
	}
	asked := map[string]int64{}
	for _, q := range r.Network.Requests {
		if q.Verdict == receipt.Refused {
			asked[eventTarget(carboy.Event{Name: q.Name, Port: q.Port})] += q.Count
		}
	}
	for _, c := range r.Network.Connections {
		to := eventTarget(carboy.Event{Name: c.Name, Port: c.Port})
		if c.Verdict == receipt.Refused && !seen[c.Name] && asked[to] == 0 {
			add(to, to)
		}
	}
	for _, to := range slices.Sorted(maps.Keys(asked)) {
		if asked[to] == 1 {
			add("request "+to, "a request to "+to)
		} else {
			add("request "+to, fmt.Sprintf("%d requests to %s", asked[to], to))
		}
	}
	if len(what) == 0 {
		return "", reports
	}
	line = "refused: " + strings.Join(what[:min(len(what), shown)], ", ")
	if n := len(what) - shown; n > 0 {
		line += fmt.Sprintf(" and %d more", n)
	}
	return line, reports
}
