package carboy

import (
	"strings"

	"github.com/carboy/carboy/internal/manifest"
)

// promptArg is the argument of a command that becomes the prompt.
const promptArg = "{prompt}"

func launchCommand(c *Client, e *manifest.Effective, o *StartOptions, l *launch) error {
	s := &e.Provider.Settings
	command, text := s.Command, strings.TrimSpace(e.Agent.Prompt.V+"\n\n"+o.Prompt)
	switch {
	case o.resume && s.ResumeCommand.IsSet():
		// The agent's text was said at the beginning.
		command, text = s.ResumeCommand, o.Prompt
	case o.resume:
		l.notes = append(l.notes, "settings say how the command begins (command), and not how it continues (resume_command): it begins again, with its files")
	}
	found := false
	for _, a := range command.V {
		if a == promptArg {
			a, found = text, true
		}
		l.command = append(l.command, a)
	}
	if !found && text != "" {
		if o.Headless {
			return &OptionError{Option: command.From.String(), Value: command.From.Field, Reason: "has no argument {prompt}, so that the prompt would be lost", Advice: "add '{prompt}' where the program takes it"}
		}
		l.notes = append(l.notes, "the command has no argument {prompt}, so the agent's text is not passed on")
	}
	if len(l.skills) > 0 {
		l.addSkills(".agents/skills")
	}
	if len(l.mcp) > 0 {
		l.notes = append(l.notes, "the command is not told of carboy's tools: "+l.mcp[0].url)
	}
	return nil
}
