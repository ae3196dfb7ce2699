//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/prompt"
)

// choose asks a person which agent to start, and for the options that no flag sets.
func (a *app) choose(ctx context.Context, c *carboy.Client, f *startFlags, o *carboy.StartOptions) error {
	there, err := c.Choices(".")
	if err != nil {
		return err
	}
	if len(there.Agents) == 0 {
		return &advisedError{errors.New("start: there is no agent yet"), "carboy init writes one"}
	}
	if f.headless || !isTerminal(a.stdin) || !isTerminal(a.stderr) || !a.dryRun(f) && !isTerminal(a.stdout) || a.env("TERM") == "dumb" {
		how := "carboy start AGENT --headless --prompt 'fix the tests'"
		if !f.headless {
			how = "carboy start AGENT, or add --headless --prompt TEXT"
		}
		return usagef(how+"; "+namesOf(there), "start: name an agent")
	}
	agent := &prompt.One{Title: "Which agent?"}
	for _, l := range there.Agents {
		agent.Items = append(agent.Items, prompt.Item{Name: l.Name, Description: descriptionOf(l)})
	}
	bottles := &prompt.Ordered{Title: "In which bottles? Later ones win."}
	label := &prompt.Text{Title: "A label for the bottle? Empty: the agent's name.", Check: checkLabel}
	color := &prompt.One{Title: "A colour to know it by?", Items: []prompt.Item{{Name: noColor}}}
	for i, name := range carboy.Colors {
		color.Items = append(color.Items, prompt.Item{Name: name, SGR: string(colorTone(i))})
	}
	err = prompt.Run(ctx, prompt.Terminal{In: a.stdin, Out: a.stderr.(*os.File), ASCII: !a.utf8(), Color: a.color(a.stderr)},
		func() prompt.Question { return agent },
		func() prompt.Question {
			if len(o.Bottles) > 0 || len(there.Bottles) == 0 || there.Agent(agent.Chosen).Err != nil {
				return nil
			}
			bottles.Chosen = there.Own(agent.Chosen)
			for _, name := range there.Bottles {
				words := ""
				if err := there.Broken[name]; err != nil {
					words = "can't be used: " + err.Error()
				}
				bottles.Items = append(bottles.Items, prompt.Item{Name: name, Description: words})
			}
			for _, name := range bottles.Chosen {
				if !slices.Contains(there.Bottles, name) {
					bottles.Items = append(bottles.Items, prompt.Item{Name: name, Description: "there is no such bottle"})
				}
			}
			return bottles
		},
		func() prompt.Question {
			if o.Label != "" {
				return nil
			}
			return label
		},
		func() prompt.Question {
			if o.Color != "" {
				return nil
			}
			return color
		},
	)
	if errors.Is(err, prompt.ErrGivenUp) {
		a.say(plainText, "nothing was started")
		return exitcode.Interrupted(syscall.SIGINT, errReported)
	}
	if err != nil {
		return err
	}
	o.Agent = agent.Chosen
	if !slices.Equal(bottles.Chosen, there.Own(agent.Chosen)) {
		o.Bottles = append(o.Bottles, bottles.Chosen...)
	}
	o.Label = first(o.Label, label.Value)
	if o.Color == "" && color.Chosen != noColor {
		o.Color = color.Chosen
	}
	return nil
}

const noColor = "none"

// namesOf returns the names of the agents in one line.
func namesOf(there *carboy.Choices) string {
	const most = 20
	var names []string
	for _, l := range there.Agents {
		names = append(names, l.Name)
	}
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return "there are " + strings.Join(names, ", ") + more
}

// descriptionOf returns the description of an agent. Its file may be a repository's.
func descriptionOf(l manifest.Listed) string {
	words := l.Description
	if l.Err != nil {
		words = "can't be used: " + l.Err.Error()
	}
	if l.InRepo {
		words = strings.TrimSpace("(the repository's) " + words)
	}
	return words
}

func checkLabel(s string) error {
	if !carboy.ValidLabel(s) {
		return errors.New("use a few words")
	}
	return nil
}

// colorTone returns the tone of carboy.Colors[i].
func colorTone(i int) tone {
	if i < 8 {
		return tone(fmt.Sprint(30 + i))
	}
	return tone(fmt.Sprint(90 + i - 8))
}

// toneOf returns the tone of a colour's name.
func toneOf(name string) tone {
	if i := slices.Index(carboy.Colors, name); i >= 0 {
		return colorTone(i)
	}
	return plainText
}
