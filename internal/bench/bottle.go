package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/gvisor"
	"github.com/carboy/carboy/internal/rootfs"
)

// livingBottle is a bottle without a wire, held by this program: there is no
// command for it yet.
func (b *bench) livingBottle(ctx context.Context) (*living, error) {
	user := bottle.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Name: "carboy", Home: "/home/carboy"}
	if user.UID == 0 {
		user.UID, user.GID = nobodyUID, nobodyGID
	}
	root, err := rootfs.Host(rootfs.Options{User: user, Hostname: "carboy"})
	if err != nil {
		return nil, err
	}
	bt, err := gvisor.Backend{}.Create(ctx, &bottle.Spec{
		ID: "bench", Root: root, User: user, HostUID: user.UID, HostGID: user.GID, Hostname: "carboy",
		Limits: bottle.Limits{
			Timeout: time.Hour, Memory: 1 << 30, Pids: 256, Disk: 1 << 30, CPUs: 1024, Output: 1 << 20, FileSize: 1 << 30, OpenFiles: 1024,
		},
	})
	if err != nil {
		return nil, err
	}
	return &living{
		close: bt.Close,
		processes: func() ([]int, error) {
			return descendants(func(_, parent int) bool { return parent == os.Getpid() })
		},
		call: func(ctx context.Context, argv []string) error { return callInside(ctx, bt, argv) },
	}, nil
}

func callInside(ctx context.Context, bt bottle.Bottle, argv []string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	p, err := bt.Start(ctx, &bottle.Command{Args: argv, Env: loadEnv(), Dir: "/", Stdin: null, Stdout: null, Stderr: null})
	if err != nil {
		return err
	}
	st, err := p.Wait(ctx)
	if err == nil && st.ExitCode() != 0 {
		err = fmt.Errorf("exit code %d", st.ExitCode())
	}
	return err
}
