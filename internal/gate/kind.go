package gate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

// facts are the results of evaluating a signal: a struct whose fields have plain types.
// They hold observations, no opinions: register refuses names such as "confidence" and
// "score".
type facts interface {
	// Positive reports whether the signal passes. The zero value must not.
	Positive() bool
}

// Judge gathers the facts of one signal. An error means that there are none: the
// signal is unavailable, and does not pass.
type Judge[F facts] func(context.Context, *Case) (F, []Finding, error)

// SignalKind is a kind of signal that catalogs can ask for.
type SignalKind struct {
	Name, Summary string
	// Runs: signals of this kind run a command, with limits.
	Runs bool
	// Last: the signal evaluates what other signals' phases did, after they have ended.
	Last bool
	// ByCode: only the exit code and the kept files of its phases count.
	ByCode bool
	// Final: another attempt cannot mend a failure.
	Final bool
	// Keys are the kind's own keys in a catalog, beside the common ones.
	Keys []string

	parse  func(*Signal, document.Mapping) evaluator
	decode func([]byte) (facts, error)
}

type evaluator func(context.Context, *Case) (facts, []Finding, error)

var kinds = map[string]*SignalKind{}

// register adds a kind; call it from an init function. parse reads the kind's own keys of
// a signal, reports mistakes with Value.Bad, and returns the evaluator. register panics
// if the type of the facts is not allowed: that is a mistake in the program.
func register[F facts](k SignalKind, parse func(*Signal, document.Mapping) Judge[F]) {
	if why := badFacts(reflect.TypeFor[F](), map[reflect.Type]bool{}); why != "" {
		panic("gate: kind " + k.Name + ": " + why)
	}
	if k.Name == "" || kinds[k.Name] != nil {
		panic("gate: kind " + k.Name + " is there twice, or has no name")
	}
	k.parse = func(s *Signal, m document.Mapping) evaluator {
		j := parse(s, m)
		return func(ctx context.Context, c *Case) (facts, []Finding, error) {
			f, found, err := j(ctx, c)
			var ask *questionError
			if err != nil && !errors.As(err, &ask) {
				return nil, found, err
			}
			return f, found, err
		}
	}
	k.decode = func(b []byte) (facts, error) {
		var f F
		if err := decodeAny(b, &f); err != nil {
			return nil, fmt.Errorf("facts of kind %s: %w", k.Name, err)
		}
		return f, nil
	}
	kinds[k.Name] = &k
}

// Kinds returns all registered kinds, sorted by name.
func Kinds() []SignalKind {
	var out []SignalKind
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		out = append(out, *kinds[name])
	}
	return out
}

// opinions are words that no name of a fact or signal may contain: they stand for what
// nobody observed.
var opinions = []string{"confidence", "confident", "score", "selfreport", "selfassess", "certainty", "likelihood", "probability", "trustworth", "rating"}

// opinion reports whether a name says that the value is somebody's opinion.
func opinion(name string) bool {
	name = strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
	return slices.ContainsFunc(opinions, func(w string) bool { return strings.Contains(name, w) })
}

// badFacts says why a type cannot hold a kind's facts, or returns nothing.
func badFacts(t reflect.Type, seen map[reflect.Type]bool) string {
	if seen[t] {
		return ""
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported():
				return "field " + f.Name + " of its facts is not exported"
			case name == "" || name == "-":
				return "field " + f.Name + " of its facts has no name in JSON"
			case opinion(name) || opinion(f.Name):
				return "field " + name + " of its facts is an opinion, not a fact"
			}
			if why := badFacts(f.Type, seen); why != "" {
				return why
			}
		}
	case reflect.Slice, reflect.Array, reflect.Pointer:
		return badFacts(t.Elem(), seen)
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			return "its facts have a map whose keys are not strings"
		}
		return badFacts(t.Elem(), seen)
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return "its facts hold a " + t.String() + ", whose type is open"
	}
	return ""
}

// Finding is a message of a signal about one test, rule, file or program. Its texts may
// be the change's own words: show them through package safetext.
type Finding struct {
	// ID names the subject: a test's id, a rule, a program.
	ID   string `json:"id"`
	Text string `json:"text"`
	File string `json:"file,omitempty"` // of the tree
	Line int    `json:"line,omitempty"` // from 1; 0: none in particular
	// Detail is the beginning of what was printed about it.
	Detail string `json:"detail,omitempty"`
	// Noted findings do not keep a signal from passing.
	Noted bool `json:"noted,omitempty"`
}

// Bounds of one signal's findings; maxDetail is in bytes.
const (
	maxFindings = 1000
	maxDetail   = 2000
)
