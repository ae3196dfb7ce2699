//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/notify"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

const superviseLong = `Decide what no rule decides: a host that a bottle asks for, a value that was held back
on its way out, a finding in a commit. The asker waits, and continues as soon as you
answer. No answer in time is a refusal.

An answer holds only for what was shown to you, by its digest. The audit log and the
run's receipt record it.

Without a subcommand it shows the queue live in this terminal: j and k choose, Enter opens, a
approves, r rejects, m approves in another form, ? shows the other keys. With --web
it serves the same as a page to one browser on this machine.`

const superviseExample = `  carboy supervise
  carboy supervise --web
  carboy supervise list
  carboy supervise show 7h3k
  carboy supervise approve 7h3k --note "for the tests only"
  carboy supervise reject 7h3k
  carboy supervise watch --policy ~/.config/carboy/supervise.yaml`

func (a *app) superviseCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "supervise", Short: "answer what bottles ask", Long: superviseLong, Example: superviseExample, GroupID: "main", Args: a.unknownCommand}
	a.addScreens(cmd)
	cmd.AddCommand(a.superviseListCmd(), a.superviseShowCmd(), a.superviseApproveCmd(), a.superviseRejectCmd(), a.superviseModifyCmd(), a.superviseWatchCmd())
	return cmd
}

// withQueue calls f with the user's queue. A signal cancels the context.
func (a *app) withQueue(cmd *cobra.Command, f func(context.Context, *supervise.Queue) error) error {
	return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
		return queueOf(c, func(q *supervise.Queue) error { return f(ctx, q) })
	})
}

// queueOf calls f with the queue of a client.
func queueOf(c *carboy.Client, f func(*supervise.Queue) error) error {
	q, err := c.Proposals()
	if err != nil {
		return err
	}
	return errors.Join(f(q), q.Close())
}

const superviseListLong = `List what waits for an answer, oldest first; with --all also what was answered, newest
first. Other files in the queue's directory are named on stderr.`

func (a *app) superviseListCmd() *cobra.Command {
	var all, asJSON bool
	var q supervise.Query
	limit := whole{top: 1 << 30, eg: "20"}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "list what waits for an answer", Long: superviseListLong, Args: noArgs,
		Example: "  carboy supervise list\n  carboy supervise list --all --limit 20\n  carboy supervise list --json | jq -r '.[].id'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withQueue(cmd, func(ctx context.Context, queue *supervise.Queue) error {
				q.Archived, q.Limit = all, int(limit.n)
				l, err := queue.List(ctx, q)
				if err != nil {
					return err
				}
				for _, p := range l.Problems {
					a.say(plainText, "skipped: %s", errorLine(p))
				}
				if asJSON {
					out := make([]supervise.View, len(l.Entries))
					for i, e := range l.Entries {
						out[i] = e.View()
					}
					return a.printJSON(out)
				}
				return a.printProposals(l.Entries, all)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also what was answered, until gc removes it")
	cmd.Flags().StringVar(&q.Bottle, "bottle", "", "only those of `BOTTLE`")
	cmd.Flags().Var(&limit, "limit", "at most so many")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of proposals as JSON")
	cmd.RegisterFlagCompletionFunc("bottle", a.completeBottles())
	return cmd
}

// printProposals prints one line for each proposal.
func (a *app) printProposals(list []supervise.Entry, all bool) error {
	if len(list) == 0 {
		a.say(plainText, "nothing waits for an answer")
		return nil
	}
	head := []string{"ID", "WHO", "STATE", "KIND", "WHAT"}
	rows := make([][]string, len(list))
	for i, e := range list {
		p := e.Proposal
		state := left(p.Expires)
		if e.Answer != nil {
			state = string(e.Answer.Verdict)
		}
		rows[i] = []string{p.ID.Short(), p.From(), state, string(p.Kind), p.Title().String()}
	}
	return printTable(a.stdout, columns(a.stdout), !a.utf8(), head, rows, 4, func(int, int) tone { return plainText })
}

// left returns the time left to answer.
func left(until time.Time) string {
	d := time.Until(until).Round(time.Second)
	if d <= 0 {
		return "time is up"
	}
	return d.String() + " left"
}

const superviseShowLong = `Show a proposal: what exactly would change, its context, and the asker's reason.
Invisible characters in text from a bottle are escaped and pointed out. Long texts are
shortened in the middle unless you say --full; the change itself never is.`

func (a *app) superviseShowCmd() *cobra.Command {
	var full, asJSON bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "show a whole proposal", Long: superviseShowLong, Example: "  carboy supervise show 7h3k\n  carboy supervise show 7h3k --full\n  carboy supervise show 7h3k --json",
		Args: oneProposal, ValidArgsFunction: a.completeProposals,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withQueue(cmd, func(ctx context.Context, q *supervise.Queue) error {
				e, err := q.Find(ctx, args[0])
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(e.View())
				}
				return a.printProposal(a.shown(), a.stdout, e, full)
			})
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "whole texts, however long")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the proposal as JSON")
	return cmd
}

func oneProposal(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return usagef("carboy supervise list shows them", "%s: takes one proposal, got %d arguments", cmd.Name(), len(args))
}

// completeProposals completes the ids of open proposals.
func (a *app) completeProposals(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const offered = 50
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	c, err := carboy.Open(ctx, carboy.Options{Env: a.env, Quick: true})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	q, err := c.Proposals()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer q.Close()
	l, err := q.List(ctx, supervise.Query{Limit: offered, Archived: cmd.Name() == "show"})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	for _, e := range l.Entries {
		out = append(out, cobra.CompletionWithDesc(e.Proposal.ID.Short(), e.Proposal.Title().String()))
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// printProposal writes e to w. The output ends at to, which decides about colours.
func (a *app) printProposal(w, to io.Writer, e supervise.Entry, full bool) error {
	d := e.Proposal.Detail(full)
	var b strings.Builder
	fmt.Fprintln(&b, a.paint(to, boldText, d.Title.String()))
	if s := d.Warning.String(); s != "" {
		fmt.Fprintln(&b, a.paint(to, redText, "careful: "+s))
	}
	for _, n := range d.Notices {
		fmt.Fprintln(&b, a.paint(to, redText, "hidden text: "+n.String()))
	}
	for _, s := range d.Sections {
		fmt.Fprintf(&b, "\n%s\n", a.paint(to, boldText, s.Title))
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "  %s  %s\n", f.Name+strings.Repeat(" ", max(0, 12-safetext.Width(f.Name))), f.Value)
		}
		for _, l := range s.Lines {
			fmt.Fprintln(&b, a.proposalLine(to, s, l))
		}
	}
	if an := e.Answer; an != nil {
		fmt.Fprintf(&b, "\n%s\n", a.paint(to, boldText, "answer"))
		fmt.Fprintf(&b, "  %s by %s at %s\n", an.Verdict, an.By, an.At.Format(time.RFC3339))
		if an.Note != "" {
			fmt.Fprintf(&b, "  note: %s\n", safetext.String(an.Note, supervise.MaxNote))
		}
		if an.Payload != nil {
			changed := supervise.Proposal{Bottle: e.Proposal.Bottle, Kind: e.Proposal.Kind, Payload: an.Payload, Digest: an.PayloadDigest}
			fmt.Fprintf(&b, "  approved instead: %s\n  digest of that: %s\n", changed.Title(), an.PayloadDigest)
		}
		if e.Effect != "" {
			fmt.Fprintf(&b, "  effect: %s\n", safetext.String(e.Effect, 2000))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// proposalLine marks lines, so that no text from a bottle looks like one of carboy's.
func (a *app) proposalLine(to io.Writer, s supervise.Section, l supervise.Line) string {
	if s.Theirs && l.Mark != '~' {
		return "  | " + l.Text.String()
	}
	line := "  " + string(l.Mark) + " " + l.Text.String()
	if l.Mark == '@' {
		line = "  @" + l.Text.String()
	}
	switch l.Mark {
	case '+':
		return a.paint(to, greenText, line)
	case '-':
		return a.paint(to, redText, line)
	case '@', '~':
		return a.paint(to, dimText, line)
	}
	return line
}

// decideFlags holds the flags of commands that answer a proposal.
type decideFlags struct {
	note, digest string
	yes, json    bool
}

func (f *decideFlags) add(cmd *cobra.Command, approves bool) {
	cmd.Flags().StringVar(&f.note, "note", "", "`WORDS` for whoever asked, and for the record")
	cmd.Flags().StringVar(&f.digest, "digest", "", "answer only what has this `DIGEST`, of which 12 digits are enough")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the proposal with its answer as JSON")
	if approves {
		cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "neither show it nor ask")
	}
	cmd.RegisterFlagCompletionFunc("note", cobra.NoFileCompletions)
	cmd.RegisterFlagCompletionFunc("digest", cobra.NoFileCompletions)
}

const superviseApproveLong = `Approve a proposal as it is. In a terminal it is shown first, and you are asked.
Elsewhere say --yes, or give the --digest of what you have seen: nothing is approved if
something else waits by then.`

func (a *app) superviseApproveCmd() *cobra.Command {
	f := &decideFlags{}
	cmd := &cobra.Command{
		Use: "approve ID", Short: "approve a proposal as it is", Long: superviseApproveLong, Args: oneProposal, ValidArgsFunction: a.completeProposals,
		Example: "  carboy supervise approve 7h3k\n  carboy supervise approve 7h3k --digest 5f0c9a33e1b2 --note \"read only\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withQueue(cmd, func(ctx context.Context, q *supervise.Queue) error {
				return a.decide(ctx, q, args[0], f, supervise.Approved, nil)
			})
		},
	}
	f.add(cmd, true)
	return cmd
}

const superviseRejectLong = `Reject a proposal. The asker is told at once, with your note.`

func (a *app) superviseRejectCmd() *cobra.Command {
	f := &decideFlags{yes: true}
	cmd := &cobra.Command{
		Use: "reject ID", Short: "reject a proposal", Long: superviseRejectLong, Args: oneProposal, ValidArgsFunction: a.completeProposals,
		Example: "  carboy supervise reject 7h3k --note \"use the mirror\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withQueue(cmd, func(ctx context.Context, q *supervise.Queue) error {
				return a.decide(ctx, q, args[0], f, supervise.Rejected, nil)
			})
		},
	}
	f.add(cmd, false)
	return cmd
}

const superviseModifyLong = `Approve a proposal in another form: fewer hosts, one path instead of all, a value
masked instead of sent. --print prints what can be changed, as YAML. --file reads it
back (- is stdin), and --set changes one field of it. What you approve is shown first,
and you are asked, as with approve.`

func (a *app) superviseModifyCmd() *cobra.Command {
	f := &decideFlags{}
	var set []string
	var file string
	var print bool
	cmd := &cobra.Command{
		Use: "modify ID", Short: "approve a proposal in another form", Long: superviseModifyLong, Args: oneProposal, ValidArgsFunction: a.completeProposals,
		Example: "  carboy supervise modify 7h3k --print >routes.yaml\n  carboy supervise modify 7h3k --file routes.yaml\n  carboy supervise modify 7h3k --set routes[0].host=api.example.com\n  carboy supervise modify 7h3k --set action=redact",
		RunE: func(cmd *cobra.Command, args []string) error {
			if n := len(set); boolInt(print)+boolInt(file != "")+boolInt(n > 0) != 1 {
				return usagef("carboy supervise modify --help shows how", "modify: say one of --print, --file and --set")
			}
			return a.withQueue(cmd, func(ctx context.Context, q *supervise.Queue) error {
				e, err := q.Find(ctx, args[0])
				if err != nil {
					return err
				}
				can, ok := e.Proposal.Payload.(supervise.Editable)
				if !ok {
					return fmt.Errorf("%s: %w", e.Proposal.Kind, supervise.ErrNotModifiable)
				}
				if print {
					_, err := io.WriteString(a.shown(), safetext.Lines(can.EditText(), supervise.MaxPayload))
					return err
				}
				text, name, err := a.edited(can.EditText(), file, set)
				if err != nil {
					return err
				}
				to, err := can.Edit(name, text)
				if err != nil {
					return err
				}
				return a.decide(ctx, q, args[0], f, supervise.Modified, to)
			})
		},
	}
	f.add(cmd, true)
	cmd.Flags().BoolVar(&print, "print", false, "print what can be changed, and change nothing")
	cmd.Flags().StringVar(&file, "file", "", "approve what stands in `FILE`")
	cmd.Flags().StringArrayVar(&set, "set", nil, "change one field, as `FIELD=VALUE`; repeatable")
	cmd.RegisterFlagCompletionFunc("set", cobra.NoFileCompletions)
	return cmd
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// edited returns the text that a person wants instead, and its name for messages.
func (a *app) edited(text, file string, set []string) ([]byte, string, error) {
	if file != "" {
		var in io.Reader = a.stdin
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, "", err
			}
			defer f.Close()
			in = f
		}
		data, err := io.ReadAll(io.LimitReader(in, supervise.MaxPayload+1))
		if err == nil && len(data) > supervise.MaxPayload {
			err = fmt.Errorf("%s: more than %d bytes", file, supervise.MaxPayload)
		}
		return data, file, err
	}
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		return nil, "", err
	}
	for _, s := range set {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, "", usagef("for example --set action=redact", "modify: --set %q has no =", s)
		}
		at := fieldOf(&n, name)
		if at == nil || at.Kind != yaml.ScalarNode {
			return nil, "", usagef("carboy supervise modify ID --print shows the fields", "modify: there is no field %q", name)
		}
		at.Value, at.Tag, at.Style = value, "!!str", 0
	}
	out, err := yaml.Marshal(&n)
	return out, "--set", err
}

// fieldOf returns the value at a path such as routes[0].host.
func fieldOf(n *yaml.Node, place string) *yaml.Node {
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		n = n.Content[0]
	}
	for _, part := range strings.FieldsFunc(place, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == part {
					next = n.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			for i, c := range n.Content {
				if part == fmt.Sprint(i) {
					next = c
				}
			}
		}
		if next == nil {
			return nil
		}
		n = next
	}
	return n
}

// decide answers the proposal whose id begins with part. It shows the proposal as it is
// now, unless the person has named the digest of what they saw.
func (a *app) decide(ctx context.Context, q *supervise.Queue, part string, f *decideFlags, v supervise.Verdict, to supervise.Payload) error {
	e, err := q.Find(ctx, part)
	if err != nil {
		return err
	}
	p := e.Proposal
	if e.Answer != nil {
		return &supervise.AnsweredError{ID: p.ID, Answer: *e.Answer}
	}
	if f.digest != "" {
		if len(f.digest) < 12 || !strings.HasPrefix(p.Digest.String(), strings.ToLower(f.digest)) {
			return usagef("carboy supervise show "+p.ID.Short()+" shows what waits now", "%s: its digest is %s, not %.64q", p.ID, p.Digest, f.digest)
		}
	} else if !f.yes {
		if err := a.confirmProposal(ctx, e, to); err != nil {
			return err
		}
	}
	answer, err := q.Answer(ctx, supervise.Reply{ID: p.ID, Digest: p.Digest, Verdict: v, Payload: to, Note: f.note, Channel: supervise.ChannelCLI})
	if err != nil {
		return err
	}
	e.Answer = &answer
	if f.json {
		return a.printJSON(e.View())
	}
	c := greenText
	if !v.Allows() {
		c = plainText
	}
	a.say(c, "%s: %s", v, p.Title())
	return nil
}

// confirmProposal shows what would be approved and asks for confirmation.
func (a *app) confirmProposal(ctx context.Context, e supervise.Entry, to supervise.Payload) error {
	if isTerminal(a.stdin) && isTerminal(a.stderr) {
		if err := a.printProposal(a.shownTo(a.stderr), a.stderr, e, false); err != nil {
			return err
		}
		if to != nil {
			fmt.Fprintln(a.stderr, "\ninstead of that, you approve")
			e.Proposal.Payload = to
			if err := a.printProposal(a.shownTo(a.stderr), a.stderr, e, false); err != nil {
				return err
			}
		}
		fmt.Fprintln(a.stderr)
	}
	return a.confirm(ctx, "approve this?")
}

const superviseWatchLong = `Print each new proposal on a line. With --policy, your rules answer some of them; the
rest waits for a person. --notify shows waiting proposals on your desktop, over the
session's D-Bus. --bell rings the terminal's bell, which many terminals turn into a
notification. carboy starts no program for this: --json is for a program of yours.

A policy is a file of your own, outside of any workspace, that nobody else can write:

  rules:
    - kind: egress-allow
      host: [proxy.golang.org, "*.pypi.org"]
      methods: [GET, HEAD]
      answer: approve
    - kind: gitleaks-allow
      answer: reject
      note: take it out of the commit

The first rule that fits answers. A rule that approves must cover the whole proposal; a
rule that rejects, any part of it. Only people can approve gate-override,
baseline-update and tests-gone. Only signatures approve apply: approving
it here does nothing.`

const superviseWatchExample = `  carboy supervise watch --notify
  carboy supervise watch --policy ~/.config/carboy/supervise.yaml
  carboy supervise watch --json | while read -r p; do curl -d "$(jq -r .title <<<"$p")" https://ntfy.example/me; done`

type watchFlags struct {
	policy             string
	bell, json, notify bool
	desktop            *notify.Desktop // with notify
}

func (a *app) superviseWatchCmd() *cobra.Command {
	f := &watchFlags{}
	cmd := &cobra.Command{
		Use: "watch", Short: "print new proposals, and answer by rule", Long: superviseWatchLong, Example: superviseWatchExample, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				policy, err := a.loadPolicy(ctx, c, f.policy)
				if err != nil {
					return err
				}
				q, err := c.Proposals()
				if err != nil {
					return err
				}
				if f.notify {
					if f.desktop, err = notify.Open(ctx, a.env("DBUS_SESSION_BUS_ADDRESS")); err != nil {
						return errors.Join(err, q.Close())
					}
					defer f.desktop.Close()
				}
				return errors.Join(a.watchProposals(ctx, q, f, policy), q.Close())
			})
		},
	}
	cmd.Flags().StringVar(&f.policy, "policy", "", "answer by the rules in `FILE`")
	cmd.Flags().BoolVar(&f.notify, "notify", false, "show on the desktop what waits for a person")
	cmd.Flags().BoolVar(&f.bell, "bell", false, "ring the terminal's bell when something waits for a person")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object per line")
	return cmd
}

// loadPolicy reads a policy file. It returns nil if file is empty. The file must not be in
// a workspace of a run on record.
func (a *app) loadPolicy(ctx context.Context, c *carboy.Client, file string) (*supervise.Policy, error) {
	if file == "" {
		return nil, nil
	}
	config, err := store.ConfigDir(a.config, a.env)
	if err != nil {
		return nil, err
	}
	l, err := c.List(ctx, store.Query{})
	if err != nil {
		return nil, err
	}
	var workspaces []string
	for _, m := range l.Runs {
		if m.Workspace.Path != "" {
			workspaces = append(workspaces, filepath.Clean(string(m.Workspace.Path)))
		}
	}
	slices.Sort(workspaces)
	return supervise.LoadPolicy(file, config, slices.Compact(workspaces)...)
}

// watchProposals prints each proposal once, and answers those that a rule covers, until
// ctx is done.
func (a *app) watchProposals(ctx context.Context, q *supervise.Queue, f *watchFlags, policy *supervise.Policy) error {
	told := map[supervise.ID]bool{}
	problems := map[string]bool{}
	for range q.Watch(ctx) {
		l, err := q.List(ctx, supervise.Query{})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, p := range l.Problems {
			if !problems[p.Error()] {
				problems[p.Error()] = true
				a.say(plainText, "skipped: %s", errorLine(p))
			}
		}
		waiting := map[supervise.ID]bool{}
		for _, e := range l.Entries {
			waiting[e.Proposal.ID] = true
			if told[e.Proposal.ID] {
				continue
			}
			if policy != nil {
				answer, ok, err := q.AnswerByPolicy(ctx, e.Proposal, policy)
				var answered *supervise.AnsweredError
				switch {
				case ok:
					e.Answer = &answer
				case errors.As(err, &answered), errors.Is(err, supervise.ErrGone), errors.Is(err, supervise.ErrExpired), errors.Is(err, supervise.ErrNotFound):
					continue
				case err != nil:
					a.say(plainText, "%s", errorLine(err))
				}
			}
			if err := a.tellProposal(f, e); err != nil {
				return err
			}
			if f.desktop != nil && e.Answer == nil {
				if err := f.desktop.Show(ctx, "carboy: "+e.Proposal.Bottle+" waits", e.Proposal.Title().String()); err != nil && ctx.Err() == nil {
					a.say(plainText, "%s", errorLine(err))
				}
			}
		}
		told = waiting
	}
	return nil
}

func (a *app) tellProposal(f *watchFlags, e supervise.Entry) error {
	if f.json {
		line, err := json.Marshal(e.View())
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(append(line, '\n'))
		return err
	}
	p := e.Proposal
	state := "waits"
	bell := ""
	switch {
	case e.Answer != nil:
		state = fmt.Sprintf("%s by %s", e.Answer.Verdict, e.Answer.By)
	case f.bell && isTerminal(a.stdout):
		bell = "\a"
	}
	_, err := fmt.Fprintf(a.shown(), "%s  %s  %s  %s: %s%s\n", p.Created.Local().Format("15:04:05"), p.ID.Short(), p.Bottle, state, p.Title(), bell)
	return err
}
