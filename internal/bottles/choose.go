package bottles

import (
	"slices"

	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/safetext"
)

// Choices lists the agents and bottles that a person can start.
type Choices struct {
	Agents  []manifest.Listed
	Bottles []string // by name
	// Broken tells of bottles why they can't be used.
	Broken map[string]error
}

// Choices returns what can be started in dir.
func (c *Keeper) Choices(dir string) (*Choices, error) {
	s, err := c.Manifests(dir)
	if err != nil {
		return nil, err
	}
	out := &Choices{Agents: s.Agents(), Bottles: s.Names("bottles")}
	out.Broken = s.Broken(out.Bottles)
	return out, nil
}

// ValidLabel reports whether s can be the label of a bottle.
func ValidLabel(s string) bool { return len(s) <= 100 && safetext.Clean(s) }

// Agent returns the agent called name. An unknown one has nothing but its name.
func (c *Choices) Agent(name string) manifest.Listed {
	i := slices.IndexFunc(c.Agents, func(a manifest.Listed) bool { return a.Name == name })
	if i < 0 {
		return manifest.Listed{Name: name}
	}
	return c.Agents[i]
}

// Own returns the bottles that an agent gets when nobody names others.
func (c *Choices) Own(agent string) []string {
	own := c.Agent(agent).Bottles
	if len(own) == 0 && slices.Contains(c.Bottles, manifest.Default) {
		own = []string{manifest.Default}
	}
	return own
}
