package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// srt is Anthropic's sandbox-runtime: bubblewrap, filters and proxies, started by
// a program for node. Only its start is measured: what runs inside runs as it
// does in bubblewrap.
func (b *bench) srt(ctx context.Context) (*peer, error) {
	if err := absent(
		[2]string{"srt", "npm install -g @anthropic-ai/sandbox-runtime@0.0.78"},
		[2]string{"node", "version 18 or newer"},
		bwrapProgram,
		[2]string{"socat", "Debian and Ubuntu: apt-get install socat"},
		[2]string{"rg", "Debian and Ubuntu: apt-get install ripgrep"},
	); err != nil {
		return nil, err
	}
	settings, err := json.Marshal(map[string]any{
		"network":    map[string]any{"allowedDomains": []string{}, "deniedDomains": []string{}},
		"filesystem": map[string]any{"denyRead": []string{}, "allowWrite": []string{b.path("ws")}, "denyWrite": []string{}},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.path("srt.json"), settings, 0o644); err != nil {
		return nil, err
	}
	p := &peer{
		name: "srt", only: []string{"start"},
		version: versionOf(ctx, "srt", "--version"),
		command: func(ctx context.Context, _ load, argv []string) (*exec.Cmd, error) {
			c := asNobody(exec.CommandContext(ctx, "srt", append([]string{"--settings", b.path("srt.json")}, argv...)...))
			c.Dir, c.Env = b.path("ws"), append(loadEnv(), "HOME="+b.path("home"))
			return c, nil
		},
	}
	return p, p.try(ctx)
}

// staticProgram does what `true` does, or `sleep` under that name, in an image that holds
// nothing else.
const staticProgram = `package main

import (
	"os"
	"strings"
	"time"
)

func main() {
	if strings.HasSuffix(os.Args[0], "sleep") {
		time.Sleep(10 * time.Hour)
	}
}
`

// docker is measured where its daemon runs already: one container from an image
// that is made here, without a network.
func (b *bench) docker(ctx context.Context) (*peer, error) {
	if err := absent([2]string{"docker", "Debian and Ubuntu: apt-get install docker.io"}); err != nil {
		return nil, err
	}
	version, err := dockerSays(ctx, nil, "version", "--format", "{{.Server.Version}}")
	if err != nil {
		return nil, fmt.Errorf("no answer from its daemon; start dockerd: %w", err)
	}
	image, err := b.imageTar(ctx)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("carboy-bench-%d", os.Getpid())
	if _, err := dockerSays(ctx, image, "import", "-", name); err != nil {
		return nil, err
	}
	b.cleanup = append(b.cleanup, func() error {
		_, err := dockerSays(context.Background(), nil, "rmi", "--force", name) // also after an interrupt
		return err
	})
	flags := []string{"--network", "none", "--user", fmt.Sprintf("%d:%d", nobodyUID, nobodyGID)}
	with := func(argv []string, verb ...string) []string {
		return append(append(append(verb, flags...), name), argv...)
	}
	p := &peer{
		name: "docker", only: []string{"start"}, version: version,
		command: func(ctx context.Context, _ load, argv []string) (*exec.Cmd, error) {
			return exec.CommandContext(ctx, "docker", with(argv, "run", "--rm")...), nil
		},
		kept: map[kept]func(context.Context) (*keep, error){living: func(ctx context.Context) (*keep, error) {
			if _, err := dockerSays(ctx, nil, with([]string{"/bin/sleep"}, "run", "--detach", "--name", name)...); err != nil {
				return nil, err
			}
			return &keep{
				command: func(ctx context.Context, argv []string) *exec.Cmd {
					return exec.CommandContext(ctx, "docker", append([]string{"exec", name}, argv...)...)
				},
				close: func() error {
					_, err := dockerSays(context.Background(), nil, "rm", "--force", name)
					return err
				},
			}, nil
		}},
	}
	return p, p.try(ctx)
}

// dockerSays runs a short docker command and returns its output.
func dockerSays(ctx context.Context, stdin []byte, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "docker", args...)
	c.Stdin = bytes.NewReader(stdin)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, tailOf(errs.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// imageTar returns the whole root file system of docker's container.
func (b *bench) imageTar(ctx context.Context) ([]byte, error) {
	dir := b.path("image")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{"go.mod": goModule["module/go.mod"], "main.go": staticProgram} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	c := exec.CommandContext(ctx, "go", "build", "-o", "static", ".")
	c.Dir, c.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOPROXY=off", "GOWORK=off")
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build what runs in the image: %w: %s", err, tailOf(string(out)))
	}
	program, err := os.ReadFile(filepath.Join(dir, "static"))
	if err != nil {
		return nil, err
	}
	return staticImage(program)
}

func staticImage(program []byte) ([]byte, error) {
	var w bytes.Buffer
	t := tar.NewWriter(&w)
	err := errors.Join(addFile(t, "bin/true", 0o755, program), addFile(t, "bin/sleep", 0o755, program), t.Close())
	return w.Bytes(), err
}
