//go:build linux

package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
)

func (a *app) versionCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "print the version", GroupID: "keep", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.printJSON(map[string]string{"schema": "carboy.dev/version/v1", "version": carboy.Version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(a.stdout, "carboy %s (%s, %s/%s)\n", carboy.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

const completionExample = `  carboy completion bash > ~/.local/share/bash-completion/completions/carboy
  carboy completion zsh  > "${fpath[1]}/_carboy"
  carboy completion fish > ~/.config/fish/completions/carboy.fish`

func (a *app) completionCmd() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print a completion script for a shell", GroupID: "keep",
		Example: completionExample, ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("carboy completion bash", "completion: name one shell: bash, zsh or fish")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			}
			return usagef("there are bash, zsh and fish", "completion: unknown shell %q", args[0])
		},
	}
}

func (a *app) manCmd() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "write the man pages into a directory", GroupID: "keep",
		Example: "  carboy man ~/.local/share/man/man1",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("carboy man ~/.local/share/man/man1", "man: name one directory")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return writeMan(args[0]) },
	}
}

// manPages are made from the flags, with the reference: what makes them costs
// each start of this program time before main.
//
//go:embed man/*.1
var manPages embed.FS

func writeMan(dir string) error {
	pages, err := fs.Glob(manPages, "man/*")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	for _, name := range pages {
		text, rerr := manPages.ReadFile(name)
		if rerr == nil && err == nil {
			rerr = os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o644)
		}
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return fmt.Errorf("write man pages: %w", err)
	}
	return nil
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef(cmd.CommandPath()+" --help shows how it is used", "%s: takes no argument, got %q", cmd.Name(), args[0])
}
