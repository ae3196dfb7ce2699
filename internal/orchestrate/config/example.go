package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Example makes the files of carboy orchestrate init. Fields that are empty get a value that
// is to be replaced.
type Example struct {
	Provider, API, Login, Organisation string
	Repository                         string
	// Dir is the configuration directory, Program the path of carboy.
	Dir, Program string
	// Config reports whether Dir was asked for by --config.
	Config bool
}

// SecretFile and UnitFile are the names of the other files that an Example has.
const (
	SecretFile = "orchestrate-webhook-secret"
	EnvFile    = "orchestrate.env"
	UnitFile   = "carboy-orchestrate.service"
)

//go:embed example.yaml
var exampleText string

//go:embed unit.service
var unitText string

//go:embed schema.json
var schemaText []byte

// Schema returns the JSON Schema of orchestrate.yaml.
func Schema() []byte { return schemaText }

// apis are the usual addresses of APIs.
var apis = map[string]string{"gitea": "https://gitea.example.org/api/v1", "github": "https://api.github.com", "gitlab": "https://gitlab.com/api/v4"}

// Text returns the configuration, which [Parse] accepts. The error is a [document.Error] if
// a value is not fit for it.
func (x Example) Text() (string, error) {
	or := func(s *string, absent string) {
		if *s == "" {
			*s = absent
		}
	}
	or(&x.Provider, "gitea")
	or(&x.API, apis[x.Provider])
	or(&x.Login, "carboy-bot")
	or(&x.Organisation, DefaultOrganisation)
	or(&x.Repository, "acme/web")
	text := exampleText
	for name, value := range map[string]string{
		"@provider@": x.Provider, "@api@": x.API, "@login@": x.Login, "@organisation@": x.Organisation, "@repository@": x.Repository,
		"@secret@": filepath.Join(x.Dir, SecretFile),
	} {
		q, err := json.Marshal(value) // YAML's quotes are a superset of JSON's
		if err != nil {
			return "", err
		}
		text = strings.ReplaceAll(text, name, string(q))
	}
	_, err := Parse(FileName, []byte(text), func(string) string { return "" })
	return text, err
}

// Unit returns a unit of systemd for the user's services, which runs carboy orchestrate
// serve.
func (x Example) Unit() (string, error) {
	for _, s := range []string{x.Program, x.Dir} {
		if !filepath.IsAbs(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return "", fmt.Errorf("%q can't stand in a unit of systemd", s)
		}
	}
	command := unitQuoted(x.Program)
	if x.Config {
		command += " --config " + unitQuoted(x.Dir)
	}
	return strings.NewReplacer("@command@", command, "@env@", strings.ReplaceAll(filepath.Join(x.Dir, EnvFile), "%", "%%")).Replace(unitText), nil
}

// unitQuoted quotes a word of a command line in a unit.
func unitQuoted(s string) string {
	return strings.NewReplacer("%", "%%", "$", "$$").Replace(strconv.Quote(s))
}
