package carboy

import (
	"slices"

	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/visible"
)

// Choices are what a person can choose among before a start.
type Choices struct {
	Agents  []manifest.Listed
	Bottles []string // by name
}

// Choices looks what can be started in dir.
func (c *Client) Choices(dir string) (*Choices, error) {
	s, err := c.manifests(dir)
	if err != nil {
		return nil, err
	}
	return &Choices{Agents: s.Agents(), Bottles: s.Names("bottles")}, nil
}

// ValidLabel reports whether a bottle can have such a label.
func ValidLabel(s string) bool { return len(s) <= 100 && visible.Clean(s) }

// Agent is the one of that name.
func (c *Choices) Agent(name string) manifest.Listed {
	i := slices.IndexFunc(c.Agents, func(a manifest.Listed) bool { return a.Name == name })
	if i < 0 {
		return manifest.Listed{Name: name}
	}
	return c.Agents[i]
}

// Own are the bottles that an agent gets when nobody names others.
func (c *Choices) Own(agent string) []string {
	own := c.Agent(agent).Bottles
	if len(own) == 0 && slices.Contains(c.Bottles, manifest.Default) {
		own = []string{manifest.Default}
	}
	return own
}
