package agent

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
)

// promptArg is the argument that launchCommand replaces with the prompt.
const promptArg = "{prompt}"

func init() { register(manifest.Template{Name: "command"}, launchCommand) }

// launchCommand starts the program that the bottle's settings name. One that is installed
// where a bottle does not look is shown inside.
func launchCommand(c *host.Host, e *manifest.Effective, o *Options, l *Launch) error {
	s := &e.Provider.Settings
	command, text := s.Command, strings.TrimSpace(e.Agent.Prompt.V+"\n\n"+o.Prompt)
	switch {
	case o.Resume && s.ResumeCommand.IsSet():
		// The program got the agent's text at the first start.
		command, text, o.Args = s.ResumeCommand, o.Prompt, nil
	case o.Resume:
		l.Notes = append(l.Notes, "settings say how the command begins (command), and not how it continues (resume_command): it begins again, with its files")
	}
	found := false
	for _, a := range command.V {
		if a == promptArg {
			a, found = text, true
		}
		l.Command = append(l.Command, a)
	}
	if err := l.showCommand(c, e, o, command); err != nil {
		return err
	}
	for i, a := range o.Args {
		if why := manifest.LooksSecret(a); why != "" {
			return &fault.OptionError{Option: "argument", Value: fmt.Sprint(i + 1), Reason: why, Advice: "leave it out, and have the gateway put it on: --credential NAME=VARIABLE@HOST"}
		}
	}
	if !found && text != "" {
		if o.Headless {
			return &fault.OptionError{Option: command.From.String(), Value: command.From.Field, Reason: "has no argument {prompt}, so that the prompt would be lost", Advice: "add '{prompt}' where the program takes it"}
		}
		l.Notes = append(l.Notes, "the command has no argument {prompt}, so the agent's text is not passed on")
	}
	if len(l.skills) > 0 {
		l.addSkills(".agents/skills")
	}
	if len(l.mcp) > 0 {
		l.Notes = append(l.Notes, "the command is not told of carboy's tools: "+l.mcp[0].URL)
	}
	return nil
}

// showCommand mounts the program of l.Command, if its path is outside of the workspace and
// of what every bottle can read.
func (l *Launch) showCommand(c *host.Host, e *manifest.Effective, o *Options, from manifest.Value[[]string]) error {
	if len(l.Command) == 0 {
		return nil
	}
	program := l.Command[0]
	image := e.Provider.Image.IsSet() || e.Provider.Dockerfile.IsSet()
	real := fault.RealPath(program)
	// A system's program keeps its name, since some are many in one.
	if image || !filepath.IsAbs(program) || isSystems(program) && isSystems(real) || l.workspace != "" && fault.Within(program, l.workspace) {
		return nil
	}
	command, err := l.show(c, program, o.Dir)
	if err != nil {
		return &fault.OptionError{Option: from.From.String(), Value: program, Reason: "can't be started: " + err.Error(), Advice: "name the program by a path that is there"}
	}
	l.Command = append(command, l.Command[1:]...)
	return nil
}
