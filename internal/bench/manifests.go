package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/manifest"
)

// What manifests cost: reading and composing many of them, beside reading the same
// files and parsing their YAML alone; and the start of a bottle that one describes,
// beside the same bottle said by flags.

// measures lists the names for -only besides those of loads.
const (
	manifestsMeasure = "manifests"
	manyMeasure      = "many"
)

// Manifests holds ratios, one per round.
type Manifests struct {
	Files int `json:"files"`
	// Explain and Preflight are to reading and parsing; Start is of the whole
	// process, to `carboy run`.
	Explain   *Spread `json:"explain_to_parse"`
	Preflight *Spread `json:"preflight_to_parse"`
	Start     *Spread `json:"start_to_run"`
	// Of an agent that says something all the time, until its first word: Resume is
	// to its start. Freeze is the whole process, to the same. Image is what is kept of
	// it, in bytes.
	Resume *Spread `json:"resume_to_start"`
	Freeze *Spread `json:"freeze_to_start"`
	Image  int64   `json:"image_bytes"`
}

// manyManifests is the number of bottles that are composed.
const manyManifests = 200

// larder is a configuration directory. One of its agents is made of many manifests, the
// other of a single one.
type larder struct {
	home   string
	files  []string
	client *carboy.Client
	agent  string // of many
	single string // of one, which does nothing
	image  int64  // bytes that were kept of the last frozen bottle
}

func (b *bench) stock(ctx context.Context) (l *larder, err error) {
	l = &larder{home: b.path("larder"), agent: "many", single: "single"}
	conf := filepath.Join(l.home, ".config", "carboy")
	write := func(name, text string) {
		file := filepath.Join(conf, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600))
		if strings.Contains(name, "b-") || strings.Contains(name, l.agent) {
			l.files = append(l.files, file)
		}
	}
	var names []string
	for i := range manyManifests {
		name := fmt.Sprintf("b-%03d", i)
		names = append(names, name)
		write("bottles/"+name+".md", fmt.Sprintf(`---
env: {CI: "1", WHO_%[1]d: somebody, PLACE: "%[1]d"}
agent_provider: {template: command, settings: {command: ["true", "{prompt}"]}}
egress:
  routes:
    - {host: api-%[1]d.example.com, matches: [{methods: [GET, POST], paths: [{value: /v1}]}], limits: {bytes_out: 1000000}}
    - {host: "*.files-%[1]d.example.com"}
limits: {memory: 512MiB, pids: 256, timeout: 10m}
workspace: none
---
What bottle %[1]d is for.
`, i))
	}
	write("agents/"+l.agent+".md", "---\nbottle: ["+strings.Join(names, ", ")+"]\n---\nDo as you are told.\n")
	write("bottles/alone.md", "---\nagent_provider: {template: command, settings: {command: [\"true\", \"{prompt}\"]}}\nworkspace: none\n---\n")
	write("agents/"+l.single+".md", "---\nbottle: alone\n---\n")
	write("bottles/talks.md", "---\nagent_provider: {template: command, settings: {command: [sh, -c, 'while :; do echo word; sleep 0.01; done', \"{prompt}\"]}}\nworkspace: none\n---\n")
	write("agents/"+talker+".md", "---\nbottle: talks\n---\n")
	if err != nil {
		return nil, err
	}
	env := map[string]string{"HOME": l.home, "PATH": os.Getenv("PATH"), "XDG_STATE_HOME": filepath.Join(l.home, "state"), "XDG_RUNTIME_DIR": filepath.Join(l.home, "run")}
	if err := os.MkdirAll(env["XDG_RUNTIME_DIR"], 0o700); err != nil {
		return nil, err
	}
	l.client, err = carboy.Open(ctx, carboy.Options{Env: func(name string) string { return env[name] }})
	return l, err
}

// parse reads and parses the files, which is the least work that manifests can take.
func (l *larder) parse() error {
	for _, file := range l.files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		front, _, _ := bytes.Cut(bytes.TrimPrefix(text, []byte("---\n")), []byte("\n---\n"))
		var v any
		if err := yaml.Unmarshal(front, &v); err != nil {
			return err
		}
	}
	return nil
}

func (l *larder) explain() error {
	s, err := manifest.Open(manifest.Where{Config: filepath.Join(l.home, ".config", "carboy"), Home: l.home, Repo: l.home})
	if err != nil {
		return err
	}
	e, err := s.Resolve(l.agent, nil)
	if err != nil {
		return err
	}
	if n := len(e.Entries()); n < manyManifests {
		return fmt.Errorf("%d bottles come to %d entries", manyManifests, n)
	}
	return nil
}

func (l *larder) preflight() error {
	p, err := l.client.Preflight(carboy.StartOptions{Agent: l.agent, Dir: l.home, Headless: true, Prompt: "go"})
	if err == nil && len(p.Routes) != 2*manyManifests {
		err = fmt.Errorf("%d bottles come to %d routes", manyManifests, len(p.Routes))
	}
	return err
}

// talker is an agent that prints something all the time.
const talker = "talker"

func (l *larder) command(ctx context.Context, binary string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, binary, args...)
	c.Dir = l.home
	c.Env = append(os.Environ(), "HOME="+l.home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME="+filepath.Join(l.home, "state"), "XDG_RUNTIME_DIR="+filepath.Join(l.home, "run"))
	return c
}

// firstWord starts a command. It returns the time until its first output, and a function
// that waits for its end.
func firstWord(c *exec.Cmd) (took time.Duration, end func(), err error) {
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	begun := time.Now()
	if err := c.Start(); err != nil {
		return 0, nil, err
	}
	_, err = out.Read(make([]byte, 1))
	took = time.Since(begun)
	return took, func() {
		_, _ = io.Copy(io.Discard, out)
		_ = c.Wait() // frozen or destroyed: its code says so
	}, err
}

// freeze measures a start, a freeze and a resume.
func (l *larder) freeze(ctx context.Context, binary string) (start, freeze, resume time.Duration, err error) {
	stop := func(end func()) error {
		begun := time.Now()
		_, err := timed(l.command(ctx, binary, "freeze", talker), false)
		freeze = time.Since(begun)
		end()
		return err
	}
	start, end, err := firstWord(l.command(ctx, binary, "start", talker, "-q", "--headless", "--prompt", "go"))
	if err == nil {
		err = stop(end)
	}
	if err == nil {
		if resume, end, err = firstWord(l.command(ctx, binary, "resume", talker, "-q")); err == nil {
			err = stop(end)
		}
	}
	if k, kerr := l.client.Kept(talker); kerr == nil && k != nil {
		l.image = 0
		for _, p := range k.Parts() {
			l.image += p.Size
		}
		if len(k.Live) == 0 {
			err = errors.Join(err, errors.New("the processes were not kept: "+k.WhyNot))
		}
	}
	_, derr := timed(l.command(context.WithoutCancel(ctx), binary, "destroy", "--unlanded", talker), false)
	return start, freeze, resume, errors.Join(err, derr)
}

// start returns the command for a bottle of a manifest, or for the same by flags.
func (l *larder) start(ctx context.Context, binary string, byManifest bool) error {
	args := []string{"run", "-q", "--workspace", "none", "--", "true"}
	if byManifest {
		args = []string{"start", l.single, "-q", "--headless", "--prompt", "go"}
	}
	_, err := timed(l.command(ctx, binary, args...), false)
	return errors.Join(err, os.RemoveAll(filepath.Join(l.home, "state", "carboy", "runs")))
}

// manifestReps is the number of repetitions in a round; the median counts.
const manifestReps = 5

// manifests measures a round.
func (b *bench) manifests(ctx context.Context) error {
	if b.larder == nil {
		return nil
	}
	fmt.Fprintln(b.log, "manifests")
	l := b.larder
	does := []func() error{l.parse, l.explain, l.preflight,
		func() error { return l.start(ctx, b.carboy, false) }, func() error { return l.start(ctx, b.carboy, true) }}
	took := make([][]time.Duration, len(does))
	for rep := range manifestReps {
		for i := range does {
			i = (i + rep) % len(does)
			begun := time.Now()
			if err := does[i](); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return fmt.Errorf("manifests: %w", err)
			}
			took[i] = append(took[i], time.Since(begun))
		}
	}
	for i := range does {
		b.manifestTimes[i] = append(b.manifestTimes[i], medianTime(took[i]))
	}
	var frozen [3][]time.Duration
	for range manifestReps {
		start, freeze, resume, err := l.freeze(ctx, b.carboy)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("freeze: %w", err)
		}
		for i, d := range []time.Duration{start, freeze, resume} {
			frozen[i] = append(frozen[i], d)
		}
	}
	for i := range frozen {
		b.frozenTimes[i] = append(b.frozenTimes[i], medianTime(frozen[i]))
	}
	return nil
}

func (b *bench) manifestReport() *Manifests {
	t := b.manifestTimes
	if len(t[0]) == 0 {
		return nil
	}
	f := b.frozenTimes
	return &Manifests{
		Files: len(b.larder.files), Explain: spread(t[1], t[0]), Preflight: spread(t[2], t[0]), Start: spread(t[4], t[3]),
		Freeze: spread(f[1], f[0]), Resume: spread(f[2], f[0]), Image: b.larder.image,
	}
}

// Crowd holds the memory of bottles that all wait at once.
type Crowd struct {
	Bottles   int   `json:"bottles"`
	Processes int   `json:"processes"`
	PSS       int64 `json:"pss_bytes"` // of all processes
	USS       int64 `json:"uss_bytes"` // what only one process has
}

// roomOf is the memory that must be free for each waiting bottle, in bytes.
const roomOf = 64 << 20

// many starts bottles that wait, measures their memory, and ends them.
func (b *bench) many(ctx context.Context) (err error) {
	n := b.o.idle
	if n == 0 || b.carboy == "" {
		return nil
	}
	if os.Geteuid() != 0 {
		b.skip("memory of %d bottles that wait: needs root", n)
		return nil
	}
	if free, err := available(); err != nil || free < int64(n)*roomOf {
		b.skip("memory of %d bottles that wait: needs %d MiB, and %d are free", n, n*roomOf>>20, free>>20)
		return err
	}
	fmt.Fprintf(b.log, "%d bottles that wait\n", n)
	state, err := os.MkdirTemp("/tmp", "carboy-many-") // sockets need a short name
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	var running []func() error
	own := map[int]bool{}
	defer func() {
		for _, stop := range running {
			err = errors.Join(err, stop())
		}
	}()
	for i := range n {
		// Each ends with its input, so also when this program is killed.
		c := exec.Command(b.carboy, "run", "-q", "--timeout", "1h", "--workspace", "none", "--", "sh", "-c", "echo up; exec cat")
		c.Dir, c.Env = state, append(os.Environ(), "XDG_STATE_HOME="+state, "XDG_RUNTIME_DIR="+state)
		in, err := c.StdinPipe()
		if err != nil {
			return err
		}
		out, err := c.StdoutPipe()
		if err != nil {
			return err
		}
		if err := c.Start(); err != nil {
			return err
		}
		own[c.Process.Pid] = true
		ended := make(chan struct{})
		up := make(chan error, 1)
		go func() { // ends with the run
			_, err := out.Read(make([]byte, 1))
			up <- err
			c.Wait()
			close(ended)
		}()
		running = append(running, func() error { in.Close(); return end(c.Process, ended) })
		select {
		case err := <-up:
			if err != nil {
				return fmt.Errorf("bottle %d of %d does not begin: %w", i+1, n, err)
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(readyTimeout):
			return fmt.Errorf("bottle %d of %d does not begin", i+1, n)
		}
	}
	select { // what they did to begin is over
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	pids, err := descendants(func(pid, _ int) bool { return own[pid] })
	if err != nil {
		return err
	}
	m := &Crowd{Bottles: n, Processes: len(pids)}
	for _, pid := range pids {
		x, err := rollup(pid)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // ended meanwhile
		}
		if err != nil {
			return err
		}
		m.PSS += x["Pss"]
		m.USS += x["Private_Clean"] + x["Private_Dirty"]
	}
	b.crowd = m
	return nil
}

// available returns the memory that the kernel can give without swapping, in bytes.
func available() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	x, err := sizes(string(text))
	return x["MemAvailable"], err
}

// String returns m's line in the document.
func (m *Crowd) String() string {
	return fmt.Sprintf("**%d bottles that wait, at once**: %d MiB (PSS of their %d processes), %.1f MiB each; %d MiB that no two share.",
		m.Bottles, m.PSS>>20, m.Processes, float64(m.PSS)/float64(m.Bottles)/(1<<20), m.USS>>20)
}
