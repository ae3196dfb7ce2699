//go:build linux

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const orchestrateInitLong = `Write a commented orchestrate.yaml into your configuration directory, a secret for
webhooks beside it, and a unit of systemd for your user's services that runs carboy
orchestrate serve. It never overwrites a file, and writes all three or none.

In a terminal it asks for what no flag says; elsewhere it takes values that you are to
replace.`

func (a *app) orchestrateInitCmd() *cobra.Command {
	x := config.Example{}
	cmd := &cobra.Command{
		Use: "init", Short: "write a first orchestrate.yaml", Long: orchestrateInitLong, Args: noArgs,
		Example: "  carboy orchestrate init\n  carboy orchestrate init --provider gitea --api https://git.example.org/api/v1 --login carboy-bot --organisation acme --repository acme/web",
		RunE:    func(*cobra.Command, []string) error { return a.orchestrateInit(x) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&x.Provider, "provider", "", "the forge, a `NAME`: "+strings.Join(forge.Providers(), ", ")+" (default gitea, which Forgejo is too)")
	fl.StringVar(&x.API, "api", "", "the `URL` of its API")
	fl.StringVar(&x.Login, "login", "", "the `NAME` of the robot's account (default carboy-bot)")
	fl.StringVar(&x.Organisation, "organisation", "", "the `NAME` of the organisation whose members may assign work (default "+config.DefaultOrganisation+")")
	fl.StringVar(&x.Repository, "repository", "", "the first repository, as `OWNER/NAME`")
	cmd.RegisterFlagCompletionFunc("provider", cobra.FixedCompletions(forge.Providers(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// newFile is a file that is to be made.
type newFile struct{ path, text string }

func (a *app) orchestrateInit(x config.Example) error {
	dir, err := store.ConfigDir(a.config, a.env)
	if err != nil {
		return err
	}
	if err := a.askExample(&x); err != nil {
		return err
	}
	x.Dir, x.Config = dir, a.config != ""
	if x.Program, err = os.Executable(); err != nil {
		return err
	}
	text, err := x.Text()
	if err != nil {
		return usagef("carboy orchestrate init --help shows the flags", "orchestrate init: %w", err)
	}
	unit, err := x.Unit()
	if err != nil {
		return err
	}
	units, err := a.unitDir()
	if err != nil {
		return err
	}
	// The configuration comes last: when it is there, all is.
	files := []newFile{
		{filepath.Join(dir, config.SecretFile), rand.Text() + rand.Text() + "\n"},
		{filepath.Join(units, config.UnitFile), unit},
		{filepath.Join(dir, config.FileName), text},
	}
	if err := writeAllNew(files); err != nil {
		return err
	}
	for _, f := range files {
		a.say(greenText, "wrote %s", safetext.Path([]byte(f.path)))
	}
	conf, env := safetext.Path([]byte(files[2].path)), safetext.Path([]byte(filepath.Join(dir, config.EnvFile)))
	a.say(plainText, "next: edit %s: the forge, the robot, the repositories", conf)
	a.say(plainText, "then make the robot's tokens, and write them into %s (mode 0600), as the comments there say", env)
	a.say(plainText, "then set them here too (set -a; . %s) and ask: carboy orchestrate doctor", env)
	a.say(plainText, "then make the forge's webhook with the secret in %s, and start: systemctl --user enable --now %s", safetext.Path([]byte(files[0].path)), config.UnitFile)
	return nil
}

// askExample asks for what no flag says, if there is a terminal.
func (a *app) askExample(x *config.Example) error {
	if !isTerminal(a.stdin) || !isTerminal(a.stderr) {
		return nil
	}
	for _, q := range []struct {
		to    *string
		words string
	}{
		{&x.Provider, "which forge? " + strings.Join(forge.Providers(), ", ") + " [gitea]"},
		{&x.API, "the address of its API?"},
		{&x.Login, "the login of the robot? [carboy-bot]"},
		{&x.Organisation, "whose members may assign work? [" + config.DefaultOrganisation + "]"},
		{&x.Repository, "the first repository, as OWNER/NAME?"},
	} {
		if *q.to != "" {
			continue
		}
		fmt.Fprintf(a.stderr, "carboy: %s ", q.words)
		line, err := a.line()
		if err != nil {
			return err
		}
		*q.to = strings.TrimSpace(line)
	}
	return nil
}

// unitDir returns the directory of the user's units of systemd.
func (a *app) unitDir() (string, error) {
	base := a.env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		home := a.env("HOME")
		if !filepath.IsAbs(home) {
			return "", errors.New("HOME is no absolute path: set it, or XDG_CONFIG_HOME")
		}
		base = filepath.Join(home, ".config")
	}
	return filepath.Join(base, "systemd", "user"), nil
}

// writeAllNew makes files for this user alone, whole and synced: all of them, or none after
// an error. None may exist.
func writeAllNew(files []newFile) (err error) {
	for _, f := range files {
		if _, err := os.Lstat(f.path); !errors.Is(err, fs.ErrNotExist) {
			return existsError(f.path, err)
		}
	}
	var done []string
	defer func() {
		if err != nil {
			for _, path := range done {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
			return err
		}
		if err := writeWhole(f.path, f.text); err != nil {
			return err
		}
		done = append(done, f.path)
	}
	return nil
}

func existsError(path string, err error) error {
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return &advisedError{fmt.Errorf("%s is there already", safetext.Path([]byte(path))), "move it away to begin anew; nothing was written"}
}

// writeWhole makes a file that has all its text from the moment on which it has its name.
func writeWhole(path, text string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil { // never over another file
		return existsError(path, err)
	}
	return dir.Sync()
}
