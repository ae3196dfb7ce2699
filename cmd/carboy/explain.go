//go:build linux

package main

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const explainLong = `Combine an agent's bottles as carboy start does, and print the result: each value with
the file and line that it came from. It starts nothing, and reads neither secrets nor
variables.

Bottles are your own: bottles/NAME.md in ~/.config/carboy, then in ~/.bot-bottle.
Agents are agents/NAME.md in .carboy and .bot-bottle of the current directory, then in
those two. --bottle replaces the agent's own bottle; of several, later ones win.`

const explainExample = `  carboy explain reviewer
  carboy explain reviewer --bottle dev --bottle offline
  carboy explain --json reviewer`

type explainFlags struct {
	bottles list
	json    bool
}

func (a *app) explainCmd() *cobra.Command {
	f := &explainFlags{bottles: list{name: "NAME", eg: "dev"}}
	cmd := &cobra.Command{
		Use: "explain AGENT", Short: "show what an agent's bottle may do, and which file says so", Long: explainLong, Example: explainExample, GroupID: "keep",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("carboy explain AGENT", "explain: wanted one agent, got %d", len(args))
			}
			return nil
		},
		ValidArgsFunction: a.complete("agents"),
		RunE:              func(_ *cobra.Command, args []string) error { return a.explain(args[0], f) },
	}
	cmd.Flags().Var(&f.bottles, "bottle", "take this bottle instead of the agent's own; repeatable, later ones win")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the result as JSON")
	cmd.RegisterFlagCompletionFunc("bottle", a.complete("bottles"))
	return cmd
}

// manifests reads the manifests of the user and of a directory.
func (a *app) manifests(repo string) (*manifest.Set, error) {
	dir, err := store.ConfigDir(a.config, a.env)
	if err != nil {
		return nil, err
	}
	return manifest.Open(manifest.Where{Config: dir, Home: a.env("HOME"), Repo: repo})
}

func (a *app) complete(what string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		s, err := a.manifests(".")
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return s.Names(what), cobra.ShellCompDirectiveNoFileComp
	}
}

// explained is the JSON output.
type explained struct {
	Schema   string             `json:"schema"`
	Agent    explainedAgent     `json:"agent"`
	Values   []explainedValue   `json:"values"`
	Files    []explainedFile    `json:"files"`
	Warnings []document.Problem `json:"warnings"`
}

type explainedAgent struct {
	Name   string `json:"name"`
	File   string `json:"file"`
	InRepo bool   `json:"in_repository"`
}

type explainedValue struct {
	Key   string           `json:"key"`
	Value any              `json:"value"` // null: the machine's default
	From  *explainedPlace  `json:"from"`  // null: nobody's, a default
	Over  []explainedPlace `json:"over,omitempty"`
	Note  string           `json:"note,omitempty"`
}

type explainedPlace struct {
	File string `json:"file"`
	Line int    `json:"line"`
}

type explainedFile struct {
	Path string `json:"path"`
	Sum  string `json:"sha256"`
}

func (a *app) explain(agent string, f *explainFlags) error {
	set, err := a.manifests(".")
	if err != nil {
		return err
	}
	e, err := set.Resolve(agent, f.bottles.values)
	if err != nil {
		return err
	}
	if f.json {
		return a.printJSON(explainJSON(e))
	}
	a.warnOf(e)
	a.printExplained(e)
	return nil
}

// warnOf prints the warnings about the manifests.
func (a *app) warnOf(e *manifest.Effective) {
	for _, p := range e.Warnings {
		a.say(plainText, "warning: %s", errorLine(p))
	}
}

func explainJSON(e *manifest.Effective) explained {
	out := explained{
		Schema: "carboy.dev/explain/v1", Agent: explainedAgent{e.Agent.Name, e.Agent.File, e.Agent.InRepo},
		Values: []explainedValue{}, Files: []explainedFile{}, Warnings: append([]document.Problem{}, e.Warnings...),
	}
	place := func(o manifest.Origin) explainedPlace { return explainedPlace{o.File, o.Line} }
	for _, x := range e.Entries() {
		v := explainedValue{Key: x.Key, Value: x.Value, Note: x.Note}
		if !x.From.IsZero() {
			p := place(x.From)
			v.From = &p
		}
		for _, o := range x.Over {
			v.Over = append(v.Over, place(o))
		}
		out.Values = append(out.Values, v)
	}
	for _, x := range e.Files {
		out.Files = append(out.Files, explainedFile{x.Path, hex.EncodeToString(x.Sum[:])})
	}
	return out
}

// maxShown bounds a value in the table, in bytes.
const maxShown = 70

func (a *app) printExplained(e *manifest.Effective) {
	w := tabwriter.NewWriter(a.shown(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "KEY\tVALUE\tFROM\n")
	from := e.Agent.File
	if e.Agent.InRepo {
		from += " (the repository's)"
	}
	fmt.Fprintf(w, "agent\t%s\t%s\n", e.Agent.Name, a.tilde(from))
	for _, x := range e.Entries() {
		from := x.From.String()
		if x.Note != "" && x.From.IsZero() {
			from = x.Note
		} else if x.Note != "" {
			from += " (" + x.Note + ")"
		}
		if n := len(x.Over); n > 0 {
			from += ", instead of " + a.tilde(x.Over[n-1].String())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", safetext.String(x.Key, 120), safetext.String(explainedText(x), maxShown), safetext.String(a.tilde(from), 500))
		if d, ok := x.Value.(routes.Description); ok {
			for _, s := range routeDetails(d) {
				fmt.Fprintf(w, "\t  %s\t\n", safetext.String(s, 2*maxShown))
			}
		}
	}
	w.Flush()
}

// tilde shortens paths in the user's home, as shells write them.
func (a *app) tilde(s string) string { return safetext.Tilde(s, a.env("HOME")) }

func explainedText(e manifest.Entry) string {
	switch x := e.Value.(type) {
	case nil:
		return "-"
	case int64:
		if slices.ContainsFunc([]string{"limits.memory", "limits.disk", "limits.output", "limits.egress_bytes"}, func(key string) bool { return strings.HasSuffix(e.Key, key) }) {
			return receipt.Bytes(x)
		}
	case string:
		first, _, more := strings.Cut(x, "\n")
		if more {
			first += " ..."
		}
		return first
	case []string:
		return strings.Join(x, " ")
	case routes.Description:
		return routeText(x)
	}
	return fmt.Sprint(e.Value)
}

// routeText describes a route in one line.
func routeText(d routes.Description) string {
	var more []string
	if n := len(d.Matches); n > 0 {
		more = append(more, number(n, "condition", "conditions"))
	}
	if d.AuthScheme != "" {
		more = append(more, strings.TrimSpace(d.AuthScheme+" "+first(d.TokenEnv, d.Credential)))
	}
	if d.Git != nil {
		more = append(more, map[bool]string{true: "git fetch", false: "no git fetch"}[d.Git.Fetch])
	}
	if d.Inspect != nil {
		more = append(more, "passed unseen")
	}
	if d.Private {
		more = append(more, "private")
	}
	if d.Upstream != "" {
		more = append(more, "-> "+d.Upstream)
	}
	if len(more) == 0 {
		return d.Host
	}
	return d.Host + " (" + strings.Join(more, ", ") + ")"
}

// routeDetails says in words which requests a route allows and how they are scanned, where
// that is not the default.
func routeDetails(d routes.Description) []string {
	var out []string
	for _, m := range d.Matches {
		words := []string{first(strings.Join(m.Methods, ", "), "any method")}
		for i, p := range m.Paths {
			form := map[string]string{"prefix": "%s and below", "exact": "exactly %s", "regex": "paths like %s"}[p.Type]
			words = append(words, map[bool]string{true: "of ", false: "or "}[i == 0]+fmt.Sprintf(form, p.Value))
		}
		for _, h := range m.Headers {
			form := map[string]string{"exact": "with the header %s: %s", "regex": "with a header %s like %s"}[h.Type]
			words = append(words, fmt.Sprintf(form, h.Name, h.Value))
		}
		out = append(out, strings.Join(words, " "))
	}
	dlp := d.DLP
	if dlp == nil {
		return out
	}
	switch x := dlp.Outbound.(type) {
	case bool:
		out = append(out, "requests are not scanned")
	case []string:
		out = append(out, "requests are scanned for "+strings.Join(x, ", "))
	}
	if words := map[string]string{"block": "is refused", "redact": "is masked"}[dlp.OnMatch]; words != "" {
		out = append(out, "what is found in a request "+words)
	}
	if dlp.Inbound != nil {
		out = append(out, "answers are not scanned")
	}
	return out
}

const schemaLong = `Print the JSON Schema of a bottle's or an agent's front matter, of a route file, or of
orchestrate.yaml, for editors and other programs.`

func (a *app) schemaCmd() *cobra.Command {
	names := append(slices.Clone(manifest.Schemas), "orchestrate")
	return &cobra.Command{
		Use: "schema bottle|agent|routes|orchestrate", Short: "print the JSON Schema of manifests and configuration", Long: schemaLong, GroupID: "keep",
		Example:   "  carboy schema bottle > bottle.schema.json",
		ValidArgs: names,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return usagef("carboy schema bottle", "schema: name one of %s", strings.Join(names, ", "))
			case !slices.Contains(names, args[0]):
				return usagef("carboy schema bottle", "schema: no schema is called %.80q: there are %s", args[0], strings.Join(names, ", "))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "orchestrate" {
				_, err := a.stdout.Write(config.Schema())
				return err
			}
			b, err := manifest.Schema(args[0])
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(b)
			return err
		},
	}
}
