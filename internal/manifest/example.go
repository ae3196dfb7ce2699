package manifest

import (
	"fmt"
	"slices"
	"strings"
)

// Example is a bottle and an agent to start from. They have every key that most
// people want, some in comments that explain them.
type Example struct {
	Template string
	// Program is the command line of the template "command".
	Program string
	Bottle  string
	Agent   string
}

// Files returns the manifests, by their paths below a configuration directory.
func (x Example) Files() (map[string]string, error) {
	switch {
	case !slices.Contains(Templates(), x.Template):
		return nil, fmt.Errorf("%.40q is no provider: there are %s", x.Template, strings.Join(Templates(), ", "))
	case !validName(x.Bottle):
		return nil, fmt.Errorf("%.80q is no name of a bottle: names are [a-z][a-z0-9-]*", x.Bottle)
	case !validName(x.Agent):
		return nil, fmt.Errorf("%.80q is no name of an agent: names are [a-z][a-z0-9-]*", x.Agent)
	case (x.Template == "command") != (x.Program != ""):
		return nil, fmt.Errorf("a program belongs to the provider command, which needs one")
	case strings.ContainsAny(x.Program, "\"\\\n\r\x00") || strings.ContainsFunc(x.Program, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return nil, fmt.Errorf("the program's name has a character that a name does not have")
	}
	var b strings.Builder
	b.WriteString("---\n# What may be done here. carboy explain " + x.Agent + " shows what it comes to.\n")
	b.WriteString("\n# extends: base                # another bottle, or a list, on which this one builds\n")
	b.WriteString("\nagent_provider:\n  template: " + x.Template + "\n")
	t := templates[x.Template]
	b.WriteString(t.Settings)
	if x.Template == "command" {
		fmt.Fprintf(&b, "  settings:\n    # An argument that is exactly {prompt} becomes the prompt.\n    command: [%q, \"{prompt}\"]\n", x.Program)
	}
	b.WriteString("\negress:\n  # log: 2                     # 0 nothing, 1 what was refused (default), 2 every request\n")
	if t.Route == "" {
		b.WriteString("  routes: []                   # nothing is reached; such as:\n")
	} else {
		b.WriteString("  routes:\n" + t.Route)
	}
	b.WriteString(`    # - host: registry.npmjs.org
    #   matches: [{methods: [GET]}]
    # - host: api.github.com
    #   auth_scheme: token
    #   token_env: GITHUB_TOKEN  # the value of this variable is put on outside
    #   matches:
    #     - paths: [{value: /repos/OWNER/NAME}]
    #       methods: [GET, POST]

# env:                         # variables inside; never secrets
#   CI: "1"
#   WHO: ?Who are you          # asked for at the start

# git-gate:
#   user: {name: My Agent, email: agent@example.org}
#   repos:                     # reached through the git gate, which reads what is pushed
#     app:
#       url: git@github.com:OWNER/NAME.git
#       host_key: ssh-ed25519 AAAA…   # ssh-keyscan github.com
#       key: {provider: github, forge_token_env: GITHUB_TOKEN}

workspace: overlay             # changes are reviewed, then landed; or copy, bind, none
# limits: {memory: 4GiB, timeout: 2h, pids: 1024, disk: 10GiB, cpus: 2}
---
`)
	agent := "---\nbottle: " + x.Bottle + "\n# description: what it is for\n# git-gate: {user: {name: My Agent}}\n---\nYou work in a sealed bottle. Make small changes, run the tests, and say what you did.\n"
	return map[string]string{"bottles/" + x.Bottle + ".md": b.String(), "agents/" + x.Agent + ".md": agent}, nil
}
