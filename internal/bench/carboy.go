package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func (b *bench) carboyPeer(binary string) (*peer, error) {
	b.carboy = binary
	// Sockets need a short name, wherever the disk to measure is.
	sockets, err := os.MkdirTemp("/tmp", "carboy-bench-")
	if err != nil {
		return nil, err
	}
	b.cleanup = append(b.cleanup, func() error { return os.RemoveAll(sockets) })
	// at is the binary in the workspace, with a state directory for each purpose.
	at := func(ctx context.Context, state string, args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, binary, args...)
		c.Dir = b.path("ws")
		c.Env = append(os.Environ(), "XDG_STATE_HOME="+b.path(state), "XDG_RUNTIME_DIR="+sockets)
		return c
	}
	runs := b.path("state/carboy/runs")
	return &peer{
		name: "carboy", server: "host.carboy.internal", tmp: "/tmp",
		command: func(ctx context.Context, l load, argv []string) (*exec.Cmd, error) {
			args := []string{"run"} // not -q: a refusal must say why
			if l.net {
				args = append(args, "--allow-private", "host.carboy.internal:"+b.port)
			}
			for _, e := range loadEnv() {
				if !strings.HasPrefix(e, "PATH=") && !strings.HasPrefix(e, "HOME=") {
					args = append(args, "--env", e)
				}
			}
			return at(ctx, "state", append(append(args, "--"), argv...)...), nil
		},
		kept: map[kept]func(context.Context) (*keep, error){
			living: func(ctx context.Context) (*keep, error) {
				return b.livingRun(ctx, func(ctx context.Context, args ...string) *exec.Cmd { return at(ctx, "living", args...) })
			},
			waiting: func(context.Context) (*keep, error) {
				return b.pooled(func(ctx context.Context, args ...string) *exec.Cmd { return at(ctx, "pool", args...) })
			},
		},
		// Old runs would make later rounds look for what to recover.
		after: func() error { return os.RemoveAll(runs) },
	}, nil
}

// readyTimeout bounds a wait. Even a machine many times slower than usual meets it.
const readyTimeout = time.Minute

// until polls until ok returns true. It is called before a clock starts.
func until(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		done, err := ok(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}

// livingRun starts a run that goes on, for `carboy exec`.
func (b *bench) livingRun(ctx context.Context, carboy func(context.Context, ...string) *exec.Cmd) (_ *keep, err error) {
	said, err := os.Create(b.path("living.txt"))
	if err != nil {
		return nil, err
	}
	defer said.Close()
	// It ends with its input, so also when this program is killed.
	c := carboy(context.Background(), "run", "--timeout", "10h", "--", "cat")
	c.Stdout, c.Stderr = said, said
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { c.Wait(); close(ended) }() // until stop
	stop := func() error {
		in.Close()
		return end(c.Process, ended)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	var id string
	err = until(ctx, "a run that goes on", func(ctx context.Context) (bool, error) {
		select {
		case <-ended:
			text, _ := os.ReadFile(said.Name())
			return false, fmt.Errorf("the run that should go on has ended: %s", tailOf(string(text)))
		default:
		}
		out, err := carboy(ctx, "list", "--json").Output()
		if err != nil {
			return false, fmt.Errorf("carboy list: %w", err)
		}
		if id, err = runningID(out); err != nil || id == "" {
			return false, err
		}
		// Listed before its command runs.
		return carboy(ctx, "exec", id, "--", "true").Run() == nil, nil
	})
	if err != nil {
		return nil, err
	}
	return &keep{
		command: func(ctx context.Context, argv []string) *exec.Cmd {
			return carboy(ctx, append([]string{"exec", id, "--"}, argv...)...)
		},
		processes: func() ([]int, error) {
			return descendants(func(pid, _ int) bool { return pid == c.Process.Pid })
		},
		own:   c.Process.Pid,
		close: stop,
	}, nil
}

// end waits for a child process, and stops it if it does not end by itself.
func end(p *os.Process, ended <-chan struct{}) error {
	for _, sig := range []unix.Signal{0, unix.SIGTERM, unix.SIGTERM, unix.SIGKILL, 0} {
		p.Signal(sig)
		select {
		case <-ended:
			return nil
		case <-time.After(10 * time.Second):
		}
	}
	return fmt.Errorf("process %d does not end", p.Pid)
}

// runningID returns the running run in `carboy list --json`; empty: none yet.
func runningID(doc []byte) (string, error) {
	var runs []struct{ ID, State string }
	if err := json.Unmarshal(doc, &runs); err != nil {
		return "", fmt.Errorf("carboy list --json: %w", err)
	}
	for _, r := range runs {
		if r.State == "running" {
			return r.ID, nil
		}
	}
	return "", nil
}

// pooled keeps a prepared bottle for each sample.
func (b *bench) pooled(carboy func(context.Context, ...string) *exec.Cmd) (*keep, error) {
	asked := false
	command := func(ctx context.Context, argv []string) *exec.Cmd {
		return carboy(ctx, append([]string{"run", "--pool", "1", "--"}, argv...)...)
	}
	ready := func(ctx context.Context) error {
		if !asked { // the first run makes its own, and leaves one
			asked = true
			if out, err := command(ctx, []string{"/bin/true"}).CombinedOutput(); err != nil {
				return fmt.Errorf("fill the pool: %w: %s", err, tailOf(string(out)))
			}
		}
		return until(ctx, "a bottle that waits", func(ctx context.Context) (bool, error) {
			out, err := carboy(ctx, "pool", "list", "--json").Output()
			if err != nil {
				return false, fmt.Errorf("carboy pool list: %w", err)
			}
			n, err := waitingCount(out)
			return n > 0, err
		})
	}
	return &keep{
		command: command, ready: ready,
		close: func() error {
			if !asked {
				return nil
			}
			// One that is still being made cannot be stopped yet.
			ctx := context.Background() // also after an interrupt
			err := ready(ctx)
			return errors.Join(err, carboy(ctx, "pool", "stop").Run())
		},
	}, nil
}

// waitingCount reads `carboy pool list --json`.
func waitingCount(doc []byte) (int, error) {
	var ready []struct{ PID int }
	if err := json.Unmarshal(doc, &ready); err != nil {
		return 0, fmt.Errorf("carboy pool list --json: %w", err)
	}
	return len(ready), nil
}
