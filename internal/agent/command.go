package agent

import (
	"strings"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
)

// promptArg is the argument that launchCommand replaces with the prompt.
const promptArg = "{prompt}"

func init() { register(manifest.Template{Name: "command"}, launchCommand) }

// launchCommand starts the program that the bottle's settings name.
func launchCommand(c *host.Host, e *manifest.Effective, o *Options, l *Launch) error {
	s := &e.Provider.Settings
	command, text := s.Command, strings.TrimSpace(e.Agent.Prompt.V+"\n\n"+o.Prompt)
	switch {
	case o.Resume && s.ResumeCommand.IsSet():
		// The program got the agent's text at the first start.
		command, text = s.ResumeCommand, o.Prompt
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
