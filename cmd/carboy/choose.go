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
	"github.com/carboy/carboy/internal/pick"
)

// choose has a person say which agent to start, and what else no flag says.
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
	agent := &pick.One{Title: "Which agent?"}
	for _, l := range there.Agents {
		agent.Items = append(agent.Items, pick.Item{Name: l.Name, Words: wordsOf(l)})
	}
	bottles := &pick.Ordered{Title: "In which bottles? Later ones win."}
	label := &pick.Text{Title: "A label for the bottle? Empty: the agent's name.", Check: checkLabel}
	color := &pick.One{Title: "A colour to know it by?", Items: []pick.Item{{Name: noColor}}}
	for i, name := range carboy.Colors {
		color.Items = append(color.Items, pick.Item{Name: name, SGR: string(colorTone(i))})
	}
	err = pick.Run(ctx, pick.Terminal{In: a.stdin, Out: a.stderr.(*os.File), ASCII: !a.utf8(), Color: a.color(a.stderr)},
		func() pick.Question { return agent },
		func() pick.Question {
			if len(o.Bottles) > 0 || len(there.Bottles) == 0 || there.Agent(agent.Chosen).Err != nil {
				return nil
			}
			bottles.Chosen = there.Own(agent.Chosen)
			for _, name := range there.Bottles {
				bottles.Items = append(bottles.Items, pick.Item{Name: name})
			}
			for _, name := range bottles.Chosen {
				if !slices.Contains(there.Bottles, name) {
					bottles.Items = append(bottles.Items, pick.Item{Name: name, Words: "there is no such bottle"})
				}
			}
			return bottles
		},
		func() pick.Question {
			if o.Label != "" {
				return nil
			}
			return label
		},
		func() pick.Question {
			if o.Color != "" {
				return nil
			}
			return color
		},
	)
	if errors.Is(err, pick.ErrGivenUp) {
		a.say(plainText, "nothing was started")
		a.code = exitcode.Signal(syscall.SIGINT)
		return errReported
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

// namesOf says which agents there are.
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

// wordsOf is what stands beside an agent, whose file may be a repository's.
func wordsOf(l manifest.Listed) string {
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

// colorTone is one of carboy.Colors.
func colorTone(i int) tone {
	if i < 8 {
		return tone(fmt.Sprint(30 + i))
	}
	return tone(fmt.Sprint(90 + i - 8))
}

// toneOf is a bottle's colour.
func toneOf(name string) tone {
	if i := slices.Index(carboy.Colors, name); i >= 0 {
		return colorTone(i)
	}
	return plainText
}
