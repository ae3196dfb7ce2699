//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const initLong = `Write a first bottle and agent, with comments, into your configuration directory. It
never overwrites a file.

In a terminal it asks for what no flag says; elsewhere it takes the defaults.`

func (a *app) initCmd() *cobra.Command {
	x := manifest.Example{}
	cmd := &cobra.Command{
		Use: "init", Short: "write a first bottle and agent", Long: initLong, GroupID: "keep", Args: noArgs,
		Example: "  carboy init\n  carboy init --provider claude --bottle dev --agent coder\n  carboy init --provider command --program aider",
		RunE:    func(*cobra.Command, []string) error { return a.initialize(x) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&x.Template, "provider", "", "the agent's program, a `NAME`: "+strings.Join(manifest.Templates(), ", ")+" (default claude)")
	fl.StringVar(&x.Program, "program", "", "with --provider command: the `PROGRAM`")
	fl.StringVar(&x.Bottle, "bottle", "", "the bottle's `NAME` (default dev)")
	fl.StringVar(&x.Agent, "agent", "", "the agent's `NAME` (default coder)")
	cmd.RegisterFlagCompletionFunc("provider", cobra.FixedCompletions(manifest.Templates(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) initialize(x manifest.Example) error {
	dir, err := store.ConfigDir(a.config, a.env)
	if err != nil {
		return err
	}
	ask := func(to *string, words, or string) {
		if *to != "" || err != nil {
			return
		}
		if isTerminal(a.stdin) && isTerminal(a.stderr) {
			fmt.Fprintf(a.stderr, "carboy: %s [%s] ", words, or)
			if *to, err = a.line(); err != nil {
				return
			}
		}
		if *to = strings.TrimSpace(*to); *to == "" {
			*to = or
		}
	}
	ask(&x.Template, "which program? "+strings.Join(manifest.Templates(), ", "), manifest.DefaultTemplate)
	if x.Template == "command" && x.Program == "" {
		if !isTerminal(a.stdin) {
			return usagef("carboy init --provider command --program aider", "init: --provider command needs --program")
		}
		ask(&x.Program, "started by which name?", "my-agent")
	}
	ask(&x.Bottle, "the bottle's name?", "dev")
	ask(&x.Agent, "the agent's name?", "coder")
	if err != nil {
		return err
	}
	files, err := x.Files()
	if err != nil {
		return usagef("carboy init --help shows the flags", "init: %w", err)
	}
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return &advisedError{fmt.Errorf("%s is there already", safetext.Path([]byte(filepath.Join(dir, name)))), "name another one with --bottle or --agent; nothing was written"}
		}
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := writeNew(path, files[name]); err != nil {
			return err
		}
		a.say(greenText, "wrote %s", safetext.Path([]byte(path)))
	}
	a.say(plainText, "next: look at them, then carboy explain %s, and carboy start %s --cwd", x.Agent, x.Agent)
	return nil
}

// writeNew creates a file. It is an error if the file exists.
func writeNew(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already", path)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
