package carboy_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carboy/carboy"
)

// opened is a Client whose user has these files: a home, in it a project.
func opened(files map[string]string) (c *carboy.Client, project string, done func()) {
	home, err := os.MkdirTemp("", "carboy-example-")
	if err != nil {
		log.Fatal(err)
	}
	project = filepath.Join(home, "project")
	for name, text := range files {
		path := filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			log.Fatal(err)
		}
	}
	// A program leaves Env out: then it is the user's own state and configuration.
	c, err = carboy.Open(context.Background(), carboy.Options{Env: func(name string) string {
		return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home}[name]
	}})
	if err != nil {
		log.Fatal(err)
	}
	return c, project, func() { c.Close(); os.RemoveAll(home) }
}

// A command in a sealed bottle, what it changed, and taking that home.
func ExampleClient_Run() {
	c, project, done := opened(map[string]string{"project/README": "one\n"})
	defer done()
	ctx := context.Background()

	r, err := c.Run(ctx, carboy.RunOptions{
		Command:   []string{"sh", "-c", "echo two >>README; echo made >new; echo said"},
		Workspace: project,
		Mode:      carboy.WorkspaceOverlay,
		Limits:    carboy.Limits{Memory: 512 << 20},
		Stdout:    os.Stdout,
	})
	if err != nil {
		log.Fatal(err) // r, if there is one, says how far it came
	}
	fmt.Println("exit", r.Exit.Code)

	set, err := c.Changes(r.ID)
	if err != nil {
		log.Fatal(err)
	}
	for _, ch := range set.Changes {
		fmt.Println(ch.Kind, ch.Path)
	}
	if _, err := os.Stat(project + "/new"); err == nil {
		log.Fatal("it is there before it was landed")
	}
	if _, err := c.Land(ctx, r.ID, carboy.LandOptions{}); err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(project + "/README")
	fmt.Printf("%q %v\n", text, err)
	// Output:
	// said
	// exit 0
	// modify README
	// add new
	// "one\ntwo\n" <nil>
}

// A bottle and an agent as their user wrote them. What a preflight says is all that
// the agent will be able to do.
func ExampleClient_Preflight() {
	c, project, done := opened(map[string]string{
		".config/carboy/bottles/small.md": `---
agent_provider:
  template: command
  settings: {command: [./agent, '{prompt}']}
egress:
  routes:
    - host: api.example.com
      matches: [{paths: [{value: /v1}], methods: [GET]}]
limits: {memory: 512MiB}
---
`,
		".config/carboy/agents/reader.md": "---\nbottle: small\n---\nRead, and answer.\n",
		"project/agent":                   "#!/bin/sh\n",
	})
	defer done()

	p, err := c.Preflight(carboy.StartOptions{Agent: "reader", Dir: project, Cwd: true, Headless: true, Prompt: "What is it?"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Agent, "in", p.Bottles, "with", p.Limits.Memory>>20, "MiB")
	for _, r := range p.Routes {
		fmt.Println("may", r.Matches[0].Methods, "at", r.Host)
	}
	// Output:
	// reader in [small] with 512 MiB
	// may [GET] at api.example.com
}

// scripted is a bottle whose agent is a script of the project's.
const scripted = `---
agent_provider:
  template: command
  settings: {command: [sh, ./agent, '{prompt}']}
---
`

// An agent that has failed: its bottle is kept, and resumed with another prompt.
func ExampleClient_Start() {
	c, project, done := opened(map[string]string{
		".config/carboy/bottles/b.md":    scripted,
		".config/carboy/agents/fixer.md": "---\nbottle: b\n---\n",
		"project/agent":                  `echo "$1" >>~/prompts; cat ~/prompts; grep -q better ~/prompts || exit 3`,
	})
	defer done()
	ctx := context.Background()

	_, err := c.Start(ctx, carboy.StartOptions{Agent: "fixer", Dir: project, Cwd: true, Headless: true, Prompt: "do it", Stdout: os.Stdout})
	var failed *carboy.AgentError
	if !errors.As(err, &failed) {
		log.Fatal(err)
	}
	fmt.Println(failed.Slug, "ended with", failed.Code())

	s, err := c.Resume(ctx, carboy.ResumeOptions{Slug: failed.Slug, Headless: true, Prompt: "do it better", Stdout: os.Stdout})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit", s.Receipt.Exit.Code, "kept", s.Kept)
	// Output:
	// do it
	// fixer ended with 3
	// do it
	// do it better
	// exit 0 kept false
}

// A bottle that is frozen while its agent works: its processes go on when it is
// resumed, and nothing of it is left when it was destroyed.
func ExampleClient_Freeze() {
	c, project, done := opened(map[string]string{
		".config/carboy/bottles/b.md":      scripted,
		".config/carboy/agents/counter.md": "---\nbottle: b\n---\n",
		"project/agent":                    `n=1; echo "pid $$ is at $n" >log; : >ready; while [ ! -e go ]; do sleep 0.05; done; n=$((n+1)); echo "pid $$ is at $n" >>log; cat log; exit 1`,
	})
	defer done()
	ctx := context.Background()

	frozen := make(chan *carboy.Started)
	go func() {
		s, err := c.Start(ctx, carboy.StartOptions{Agent: "counter", Dir: project, Cwd: true, Headless: true, Prompt: "count"})
		if err != nil {
			log.Fatal(err)
		}
		frozen <- s
	}()
	wait := func(command string) {
		for {
			m, err := c.Find(ctx, "counter", "")
			if err == nil && m.State == carboy.RunRunning {
				if exit, err := c.Exec(ctx, m, carboy.ExecOptions{Command: []string{"sh", "-c", command}}); err == nil && exit.Code == 0 {
					return
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	wait("test -e ready")
	if _, err := c.Freeze(ctx, "counter"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("frozen", (<-frozen).Frozen)

	var out strings.Builder
	resumed := make(chan error)
	go func() {
		_, err := c.Resume(ctx, carboy.ResumeOptions{Slug: "counter", Stdout: &out})
		resumed <- err
	}()
	wait(": >go")
	var ended *carboy.AgentError
	if err := <-resumed; !errors.As(err, &ended) {
		log.Fatal(err)
	}
	lines := strings.Fields(out.String())
	fmt.Println("the same process:", lines[1] == lines[6], "at", lines[4], lines[9])

	was, err := c.Destroy(ctx, "counter", carboy.DestroyOptions{Unlanded: true})
	fmt.Println("destroyed", was, err)
	was, err = c.Destroy(ctx, "counter", carboy.DestroyOptions{})
	fmt.Println("destroyed", was, err)
	// Output:
	// frozen true
	// the same process: true at 1 2
	// destroyed true <nil>
	// destroyed false <nil>
}
