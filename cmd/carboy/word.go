//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/propose"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const wordLong = `Start %[1]s, as it is installed here, on this directory in a bottle. It needs no
manifest: carboy proposes what the bottle may reach, shows it, and asks once for each
directory. That is %[1]s's vendor, with your credential, which stays outside, and the
public registries of the languages that the directory is written in. The credential is
the vendor's variable, or for claude and codex what they were signed in with outside.

All else on the command line is for %[1]s; what follows -- is, too. Its changes wait for
your review at the end. carboy resume %[1]s goes on with the conversation.`

// wordCmd returns the command that is an agent's name. Its own flags come first, since the
// agent has some of the same names.
func (a *app) wordCmd(template string) *cobra.Command {
	f := &startFlags{cwd: true, keep: true}
	cmd := &cobra.Command{
		Use: template + " [flags] [ARG...]", Short: "start " + template + " on this directory", GroupID: "main",
		Long: fmt.Sprintf(wordLong, template), Example: fmt.Sprintf("  carboy %[1]s\n  carboy %[1]s --dry-run\n  carboy %[1]s -- --help", template),
		DisableFlagParsing: true, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := ownFlags(cmd, args)
			if err != nil {
				return err
			}
			if help, _ := cmd.Flags().GetBool("help"); help {
				return cmd.Help()
			}
			return a.startHere(cmd.Context(), f, args, func(ws store.Workspace, conf string) (*propose.Proposal, error) {
				if err := a.login(cmd.Context(), f, template, conf); err != nil {
					return nil, err
				}
				return propose.For(template, ws, conf, a.env)
			})
		},
	}
	cmd.Flags().BoolVar(&f.yes, "yes", false, "agree to what is proposed")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "only say what would be started")
	return cmd
}

// ownFlags sets the flags of cmd with which args begin, and returns the others, without --.
func ownFlags(cmd *cobra.Command, args []string) ([]string, error) {
	for len(args) > 0 {
		name, ok := strings.CutPrefix(args[0], "--")
		name, value, has := strings.Cut(name, "=")
		f := cmd.Flag(name)
		switch {
		case ok && name == "":
			return args[1:], nil
		case !ok || f == nil:
			return args, nil
		case has:
		case f.NoOptDefVal != "":
			value = f.NoOptDefVal
		case len(args) > 1:
			value, args = args[1], args[1:]
		default:
			return nil, usagef(cmd.UseLine(), "%s: --%s needs a value", cmd.Name(), name)
		}
		if err := f.Value.Set(value); err != nil {
			return nil, usagef(cmd.UseLine(), "%s: --%s: %v", cmd.Name(), name, err)
		}
		args = args[1:]
	}
	return args, nil
}

const agentLong = `Start any program that is installed here as an agent, on this directory in a bottle. It
needs no manifest: carboy proposes what the bottle may reach, shows it, and asks once for
each program, directory and set of credentials. That is the public registries of the
languages that the directory is written in, and the hosts of --credential: no vendor by
itself. The bottle has a placeholder for each credential.

A program that is no system's is shown inside read-only: the file, or the node_modules or
virtual environment of Python that it is in. carboy resume NAME starts it again with its
files and arguments. For claude, codex, gemini, opencode and pi there are commands of
their own, which know more.`

// agentCmd returns the command that starts any program as an agent.
func (a *app) agentCmd() *cobra.Command {
	f := &startFlags{cwd: true, keep: true}
	credentials := list{name: "NAME=VARIABLE@HOST[:SCHEME]", eg: "a=ANTHROPIC_API_KEY@api.anthropic.com:x-api-key"}
	cmd := &cobra.Command{
		Use: "agent [flags] -- COMMAND [ARG...]", Short: "start any program as an agent on this directory", GroupID: "main", Long: agentLong,
		Example:               "  carboy agent -- my-agent --verbose\n  carboy agent --credential a=ANTHROPIC_API_KEY@api.anthropic.com:x-api-key -- aider",
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("write it after the flags: carboy agent -- my-agent", "agent: no command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.startHere(cmd.Context(), f, args[1:], func(ws store.Workspace, conf string) (*propose.Proposal, error) {
				return (&propose.Command{Program: args[0], Credentials: credentials.values}).For(ws, conf, a.env)
			})
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.SortFlags = false
	fl.Var(&credentials, "credential", "add the value of a variable of yours to requests to a host, as bearer unless a scheme is named; the bottle has a placeholder; repeatable")
	fl.BoolVar(&f.yes, "yes", false, "agree to what is proposed")
	fl.BoolVar(&f.dry, "dry-run", false, "only say what would be started")
	return cmd
}

// startHere starts an agent on the current directory, from the manifests that by proposes.
func (a *app) startHere(ctx context.Context, f *startFlags, args []string, by func(ws store.Workspace, conf string) (*propose.Proposal, error)) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current directory: %w", err)
	}
	ws, err := store.ResolveWorkspace(dir)
	if err != nil {
		return err
	}
	conf, err := store.ConfigDir(a.config, a.env)
	if err != nil {
		return err
	}
	p, err := by(ws, conf)
	if err != nil {
		return err
	}
	if err := p.Write(); err != nil {
		return err
	}
	c, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	o := carboy.StartOptions{
		Agent: p.Name, Manifests: p.Dir, Args: args, Cwd: true, Keep: f.keep,
		Terminal: isTerminal(a.stdin) && isTerminal(a.stdout), Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
	}
	if a.dryRun(f) {
		pre, err := c.Preflight(o)
		if err == nil {
			a.printPreflight(pre, a.stdout)
		}
		return err
	}
	agree := func(pre *carboy.Preflight) error {
		if p.Agreed() {
			return nil
		}
		a.printPreflight(pre, a.stderr)
		if !f.yes {
			if err := a.confirm(ctx, "start it, and the next time in this directory without asking?"); err != nil {
				return err
			}
		}
		return p.Agree()
	}
	s, err := a.startAgent(ctx, c, f, o, agree)
	if s == nil || s.Frozen || !o.Terminal || !s.Receipt.Landable() {
		return err
	}
	a.offer(ctx, s.Receipt)
	return err
}

// login asks once whether carboy may use the sign-in of the agent's program, where the user
// has set no key.
func (a *app) login(ctx context.Context, f *startFlags, template, conf string) error {
	l, err := propose.FindLogin(template, a.outer)
	if err != nil || l == nil {
		return err
	}
	if a.dryRun(f) {
		a.env = l.Over(a.env)
		return nil
	}
	file := safetext.String(a.tilde(l.File), 200)
	if !l.Agreed(template, conf) {
		if !f.yes {
			if err := a.confirm(ctx, "use the sign-in in "+file+"? Its token stays outside, and carboy reads it at each start."); err != nil {
				return err
			}
		}
		if err := l.Agree(template, conf); err != nil {
			return err
		}
	}
	a.say(dimText, "the sign-in in %s is valid until %s", file, l.Expires.Local().Format(time.DateTime))
	return nil
}

// offer lets a person at the terminal look at a run's changes and land them.
func (a *app) offer(ctx context.Context, r *receipt.Receipt) {
	code := a.code
	defer func() { a.code = code }()
	for {
		fmt.Fprint(a.stderr, "carboy: d shows the changes, l lands them, Enter leaves them: ")
		answer, err := a.line()
		if err != nil || !slices.Contains([]string{"d", "l"}, strings.TrimSpace(answer)) {
			return
		}
		command := "diff"
		if strings.TrimSpace(answer) == "l" {
			command = "land"
		}
		a.code = 0
		if a.run(ctx, []string{command, string(r.ID)}) == 0 && command == "land" {
			return
		}
	}
}
