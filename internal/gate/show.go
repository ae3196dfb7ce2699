package gate

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/safetext"
)

// Text writes the verdict for a terminal: all findings, or the first few of each signal.
func (v *Verdict) Text(w io.Writer, all bool) {
	v = v.Masked()
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	s := func(t string) string { return safetext.String(t, 400) }
	v.head(p, s)
	p("")
	room := maxDetailLinesAll
	for _, r := range v.Signals {
		p("  %-11s %-20s %s", r.Outcome, s(r.Name), s(r.Kind))
		if r.Why != "" {
			p("              %s", s(r.Why))
		}
		var tests testFacts
		if r.Kind == "tests" && json.Unmarshal(r.Facts, &tests) == nil && tests.summary() != "" {
			p("              %s", tests.summary())
		}
		shown := 0
		for _, f := range r.Findings {
			if f.Noted && !all {
				continue
			}
			if shown == 10 && !all {
				p("              and more: carboy gate explain %s", v.ID)
				break
			}
			shown++
			at := ""
			if f.File != "" {
				at = safetext.Path([]byte(f.File))
				if f.Line > 0 {
					at = fmt.Sprintf("%s:%d", at, f.Line)
				}
				at += ": "
			}
			id := s(f.ID)
			if f.File != "" && strings.HasPrefix(f.ID, f.File) {
				id = s(strings.TrimPrefix(strings.TrimPrefix(f.ID, f.File), "::"))
			}
			if id != "" {
				id += ": "
			}
			p("              %s%s%s", at, id, s(f.Text))
			lines := detailLines(&f)
			if !all {
				if most := min(maxDetailLines, room); r.Outcome == Escalated {
					// A person decides by these. They begin with what was edited.
					lines = lines[:min(len(lines), 2*maxDetailLines, room)]
				} else {
					lines = lines[max(0, len(lines)-most):]
				}
				room -= len(lines)
			}
			for _, line := range lines {
				p("                | %s", line)
			}
		}
	}
}

// head writes what all signals have in common, by p. s makes texts printable.
func (v *Verdict) head(p func(string, ...any), s func(string) string) {
	if none := v.noTests(); none != "" {
		p("%s", none)
	}
	p("%s  verdict %s", strings.ToUpper(string(v.Outcome)), v.ID)
	p("  change   %s%s", s(v.Change.Name), commit(v.Change))
	p("  base     %s%s", s(v.Base.Name), commit(v.Base))
	p("  judged   by %s (%s), in bottles of class %s, in %s", s(v.Catalog), s(v.CatalogFrom), s(v.Isolation), v.Duration.Round(time.Millisecond))
	if v.Cached {
		p("           nothing was run: all that the verdict of %s depended on is as it was", v.At.Format(time.RFC3339))
	}
	if v.Override != nil {
		p("  override %s let it go on at %s: %s", s(v.Override.By), v.Override.At.Format(time.RFC3339), s(v.Override.Reason))
	}
	for _, g := range v.Granted {
		p("  granted  %d more attempts, by %s at %s", g.More, s(g.By), g.At.Format(time.RFC3339))
	}
	if v.BaselineBy != "" {
		p("  baseline signed by %s", s(v.BaselineBy))
	}
	if w := v.Warm; w != nil {
		by := "by this gate"
		if w.Verdict != v.ID {
			by = "by verdict " + s(w.Verdict)
		}
		p("  cache    of the base, filled %s: %d files, SHA-256 %s", by, w.Files, s(w.Digest))
	}
	if v.WarmWhy != "" {
		p("  cache    none %s: %s", map[bool]string{true: "this time", false: "for later gates"}[v.Warm == nil], s(v.WarmWhy))
	}
	for _, x := range v.Phases {
		if x.Stale != nil && !strings.Contains(x.On, "-alone-") {
			p("  cache    not used by %s: %s", s(x.Signal), s(x.Stale.reason()))
		}
	}
}

// noTests says that no test is known to have run; empty: some ran.
func (v *Verdict) noTests() string {
	var byCode []string
	for _, r := range v.Signals {
		var f testFacts
		switch {
		case r.Kind == "tests" && json.Unmarshal(r.Facts, &f) == nil && f.Passed+len(f.Failed) > 0:
			return ""
		case r.Kind != "tests" && kinds[r.Kind] != nil && kinds[r.Kind].Runs && testsByName(r.Name):
			byCode = append(byCode, r.Name)
		}
	}
	if len(byCode) > 0 {
		return "no test was counted: that tests ran, only the exit code of " + firstOf(byCode, 5) + " says"
	}
	return "NO TESTS RAN"
}

// testsByName reports whether a signal seems to run tests, by its name.
func testsByName(signal string) bool {
	return strings.Contains(signal, "test") || signal == "check" || signal == "make-check"
}

// RunsTests reports whether some signal runs tests, as far as its kind and name say.
func (c *Catalog) RunsTests() bool {
	return slices.ContainsFunc(c.Signals, func(s *Signal) bool {
		return s.Kind.Name == "tests" || s.Kind.Runs && testsByName(s.Name)
	})
}

// Bounds of the output that is shown, in lines: of one finding, and of all.
const (
	maxDetailLines    = 8
	maxDetailLinesAll = 40
)

// detailLines returns the output that belongs to a finding, by lines.
func detailLines(f *Finding) []string {
	text := strings.TrimRight(safetext.Lines(f.Detail, maxDetail), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func commit(s Side) string {
	if s.Commit == "" || s.Commit == s.Name {
		return ""
	}
	return " (" + s.Commit[:min(12, len(s.Commit))] + ")"
}

var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("verdict").Funcs(template.FuncMap{
		"s":        func(t string) string { return safetext.String(t, 1000) },
		"lines":    func(t string) string { return safetext.Lines(t, maxDetail) },
		"d":        func(d time.Duration) string { return d.Round(time.Millisecond).String() },
		"untested": (*Verdict).noTests,
	}).Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>carboy: verdict {{.ID}}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
body,td{overflow-wrap:anywhere}th{white-space:nowrap}table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3em .6em;border-bottom:1px solid #ddd;vertical-align:top}
.short th{white-space:normal}.short td~td{overflow-wrap:normal;white-space:nowrap}
.passed{color:#176d2c}.failed,.final,.unavailable{color:#a01414}.escalated{color:#8a5a00}pre{white-space:pre-wrap;background:#f5f5f5;padding:.5em;margin:.3em 0}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}pre{background:#222}.passed{color:#7fd18f}.failed,.final,.unavailable{color:#ff8f8f}.escalated{color:#f0c060}}
</style></head><body>
{{with untested .}}<p><b>{{s .}}</b></p>{{end}}
<h1 class="{{.Outcome}}">{{.Outcome}}</h1>
<table>
<tr><th>Verdict</th><td>{{.ID}}, {{.At}}{{if .Cached}}, given again{{end}}</td></tr>
<tr><th>Change</th><td>{{s .Change.Name}} {{s .Change.Commit}}<br>SHA-256 {{.Change.Digest}}</td></tr>
<tr><th>Base</th><td>{{s .Base.Name}} {{s .Base.Commit}}<br>SHA-256 {{.Base.Digest}}</td></tr>
<tr><th>Judged by</th><td>{{s .Catalog}} ({{s .CatalogFrom}}), SHA-256 {{.CatalogDigest}}</td></tr>
<tr><th>Held by</th><td>{{s .Isolation}}, carboy {{s .Build}}, {{d .Duration}}</td></tr>
{{with .Override}}<tr><th>Override</th><td>{{s .By}}, {{.At}}: {{s .Reason}} (proposal {{s .Proposal}})</td></tr>{{end}}
{{range .Granted}}<tr><th>Granted</th><td>{{.More}} more attempts, {{s .By}}, {{.At}} (proposal {{s .Proposal}})</td></tr>{{end}}
{{with .BaselineBy}}<tr><th>Baseline</th><td>signed by {{s .}}</td></tr>{{end}}
</table>
<h2>Signals</h2>
{{range .Signals}}<h3><span class="{{.Outcome}}">{{.Outcome}}</span> {{s .Name}} <small>{{s .Kind}}, {{d .Duration}}</small></h3>
{{with .Why}}<p>{{s .}}</p>{{end}}
{{if .Findings}}<table>{{range .Findings}}<tr><td>{{if .File}}<b>{{s .File}}{{if .Line}}:{{.Line}}{{end}}</b> {{end}}{{s .ID}}: {{s .Text}}{{if .Noted}} (noted){{end}}{{with .Detail}}<pre>{{lines .}}</pre>{{end}}</td></tr>
{{end}}</table>{{end}}
{{end}}
<h2>Phases</h2>
<table class="short"><tr><th>Signal, trace</th><th>On</th><th>Exit</th><th>Took</th></tr>
{{range .Phases}}<tr><td>{{s .Signal}}<br><small>{{.Trace}}</small></td><td>{{.On}}</td><td>{{.Code}} {{s .Reason}}</td><td>{{d .Duration}}</td></tr>
{{end}}</table>
</body></html>
`))
})

// HTML writes the verdict as a page without scripts or external resources.
func (v *Verdict) HTML(w io.Writer) error { return page().Execute(w, v.Masked()) }

// Masked returns a copy for people and forges, in which tokens are masked in everything
// that comes from the change, also in the names of its files.
func (v *Verdict) Masked() *Verdict {
	x := *v
	x.Signals = slices.Clone(v.Signals)
	for i, r := range x.Signals {
		c := *r
		c.Why, c.Findings = maskSecrets(r.Why), slices.Clone(r.Findings)
		for j := range c.Findings {
			f := &c.Findings[j]
			f.ID, f.File, f.Text, f.Detail = maskSecrets(f.ID), maskSecrets(f.File), maskSecrets(f.Text), maskSecrets(f.Detail)
		}
		x.Signals[i] = &c
	}
	return &x
}

// maxFailure bounds the output of a signal's tests in a JUnit report, roughly, in bytes.
const maxFailure = 64 << 10

// JUnit writes the verdict as JUnit XML, which forges show as test results, with one case
// for each signal.
func (v *Verdict) JUnit(w io.Writer) error {
	v = v.Masked()
	type failure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		Time    string   `xml:"time,attr"`
		Failure *failure `xml:"failure,omitempty"`
		Error   *failure `xml:"error,omitempty"`
	}
	type suite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Time     string     `xml:"time,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	secs := func(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
	s := suite{Name: "carboy gate " + v.ID, Tests: len(v.Signals), Time: secs(v.Duration)}
	for _, r := range v.Signals {
		c := testcase{Name: r.Name, Class: r.Kind, Time: secs(r.Duration)}
		var text strings.Builder
		for _, f := range r.Findings {
			if !f.Noted {
				fmt.Fprintf(&text, "%s: %s\n", strings.TrimSpace(safetext.String(f.File, 400)+" "+safetext.String(f.ID, 400)), safetext.String(f.Text, 400))
				if text.Len() < maxFailure {
					for _, line := range detailLines(&f) {
						text.WriteString("    " + line + "\n")
					}
				}
			}
		}
		// Forges show only the message.
		first := slices.IndexFunc(r.Findings, func(f Finding) bool { return !f.Noted })
		why := r.Why
		if why == "" && first >= 0 {
			why = r.Findings[first].ID + ": " + r.Findings[first].Text
		}
		x := &failure{Message: safetext.String(why, 400), Type: string(r.Outcome), Text: text.String()}
		switch r.Outcome {
		case Passed:
		case Failed, Final:
			s.Failures++
			c.Failure = x
		default:
			s.Errors++
			c.Error = x
		}
		s.Cases = append(s.Cases, c)
	}
	io.WriteString(w, xml.Header)
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// uri returns a path of the tree as a relative reference of RFC 3986. An unescaped colon
// would end a scheme, and two leading slashes would begin a host.
func uri(p string) string {
	parts := strings.Split(p, "/")
	for i, e := range parts {
		parts[i] = strings.ReplaceAll(url.PathEscape(e), ":", "%3A")
	}
	if p = strings.Join(parts, "/"); strings.HasPrefix(p, "/") {
		p = "." + p
	}
	return p
}

// SARIF writes the findings in SARIF 2.1.0.
func (v *Verdict) SARIF(w io.Writer) error {
	v = v.Masked()
	type message struct {
		Text string `json:"text"`
	}
	type region struct {
		StartLine int `json:"startLine"`
	}
	type physical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *region `json:"region,omitempty"`
	}
	type location struct {
		Physical physical `json:"physicalLocation"`
	}
	type result struct {
		Rule      string     `json:"ruleId"`
		Level     string     `json:"level"`
		Message   message    `json:"message"`
		Locations []location `json:"locations,omitempty"`
	}
	type rule struct {
		ID   string  `json:"id"`
		Text message `json:"shortDescription"`
	}
	type driver struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		Rules   []rule `json:"rules"`
	}
	type run struct {
		Tool struct {
			Driver driver `json:"driver"`
		} `json:"tool"`
		Results []result `json:"results"`
	}
	r := run{Results: []result{}}
	r.Tool.Driver = driver{Name: "carboy gate", Version: v.Build}
	for _, k := range Kinds() {
		r.Tool.Driver.Rules = append(r.Tool.Driver.Rules, rule{k.Name, message{k.Summary}})
	}
	for _, s := range v.Signals {
		n := 0
		for _, f := range s.Findings {
			x := result{Rule: s.Kind, Level: "error", Message: message{safetext.String(s.Name+": "+f.ID+": "+f.Text, 1000)}}
			if f.Noted {
				x.Level = "note"
			} else {
				n++
			}
			if f.File != "" {
				var l location
				l.Physical.Artifact.URI = uri(f.File)
				if f.Line > 0 {
					l.Physical.Region = &region{f.Line}
				}
				x.Locations = []location{l}
			}
			r.Results = append(r.Results, x)
		}
		if s.Outcome != Passed && n == 0 {
			r.Results = append(r.Results, result{Rule: s.Kind, Level: "error", Message: message{safetext.String(s.Name+" is "+string(s.Outcome)+": "+s.Why, 1000)}})
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Schema  string `json:"$schema"`
		Version string `json:"version"`
		Runs    []run  `json:"runs"`
	}{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []run{r}})
}
