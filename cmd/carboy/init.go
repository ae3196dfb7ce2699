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
	"github.com/carboy/carboy/internal/propose"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const initLong = `Write a first bottle and agent, with comments, into your configuration directory. It
never overwrites a file.

In a terminal it asks for what no flag says; elsewhere it takes the defaults. With
--from-last it takes what was proposed for this directory: by carboy claude, say.`

func (a *app) initCmd() *cobra.Command {
	x, last := manifest.Example{}, false
	cmd := &cobra.Command{
		Use: "init", Short: "write a first bottle and agent", Long: initLong, GroupID: "keep", Args: noArgs,
		Example: "  carboy init\n  carboy init --provider claude --bottle dev --agent coder\n  carboy init --provider command --program aider",
		RunE: func(*cobra.Command, []string) error {
			if last {
				return a.initializeFromLast()
			}
			return a.initialize(x)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&x.Template, "provider", "", "the agent's program, a `NAME`: "+strings.Join(manifest.Templates(), ", ")+" (default claude)")
	fl.StringVar(&x.Program, "program", "", "with --provider command: the `PROGRAM`")
	fl.StringVar(&x.Bottle, "bottle", "", "the bottle's `NAME` (default dev)")
	fl.StringVar(&x.Agent, "agent", "", "the agent's `NAME` (default coder)")
	fl.BoolVar(&last, "from-last", false, "take the manifests that were proposed for this directory")
	for _, other := range []string{"provider", "program", "bottle", "agent"} {
		cmd.MarkFlagsMutuallyExclusive("from-last", other)
	}
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
	if err := a.writeManifests(dir, files, "name another one with --bottle or --agent"); err != nil {
		return err
	}
	a.say(plainText, "next: look at them, then carboy explain %s, and carboy start %s --cwd", x.Agent, x.Agent)
	return nil
}

// initializeFromLast copies the manifests with which an agent was last started by its name
// in this directory.
func (a *app) initializeFromLast() error {
	conf, err := store.ConfigDir(a.config, a.env)
	if err != nil {
		return err
	}
	ws, err := store.ResolveWorkspace(".")
	if err != nil {
		return err
	}
	files, name, err := propose.Last(ws, conf)
	if err != nil {
		return err
	}
	if name == "" {
		return &advisedError{errors.New("nothing was proposed for this directory"), "carboy claude, or another agent's name, proposes manifests; carboy init writes an example"}
	}
	if err := a.writeManifests(conf, files, "rename that one"); err != nil {
		return err
	}
	a.say(plainText, "next: look at them, then carboy start %s --cwd", name)
	return nil
}

// writeManifests writes new files below a configuration directory, or none.
func (a *app) writeManifests(dir string, files map[string]string, otherwise string) error {
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return &advisedError{fmt.Errorf("%s is there already", safetext.Path([]byte(filepath.Join(dir, name)))), otherwise + "; nothing was written"}
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
