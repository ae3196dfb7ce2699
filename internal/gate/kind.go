package gate

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

// Facts are what a kind found out: a struct with fields of plain types, which says
// itself whether it is what the gate asks for. Nothing in it is an opinion: names
// such as "confidence" and "score" are refused when the kind is registered.
type Facts interface {
	// Positive reports whether the signal passes. The zero value must not.
	Positive() bool
}

// Judge gathers the facts of one signal. An error means that there are none: the
// signal is unavailable, which is no pass.
type Judge[F Facts] func(context.Context, *Case) (F, []Finding, error)

// Kind is a sort of signal that catalogs can ask for.
type Kind struct {
	Name, Summary string
	// Runs: signals of the kind have a command, with limits.
	Runs bool
	// Last: it judges what other signals' phases did, when these have ended.
	Last bool
	// ByCode: of its phases, only how they ended and what they keep counts.
	ByCode bool
	// Final: what fails it is no mistake that another attempt is for.
	Final bool
	// Keys are those of its own in a catalog, beside the common ones.
	Keys []string

	parse  func(*Signal, document.Mapping) judge
	decode func([]byte) (Facts, error)
}

type judge func(context.Context, *Case) (Facts, []Finding, error)

var kinds = map[string]*Kind{}

// Register adds a kind, from the init function of its file. parse reads the kind's own
// keys of a signal, reports what is wrong with them by the values' own Bad, and
// returns what judges. It panics when the kind's facts can't be taken: that is a
// mistake in the program.
func Register[F Facts](k Kind, parse func(*Signal, document.Mapping) Judge[F]) {
	if why := badFacts(reflect.TypeFor[F](), map[reflect.Type]bool{}); why != "" {
		panic("gate: kind " + k.Name + ": " + why)
	}
	if k.Name == "" || kinds[k.Name] != nil {
		panic("gate: kind " + k.Name + " is there twice, or has no name")
	}
	k.parse = func(s *Signal, m document.Mapping) judge {
		j := parse(s, m)
		return func(ctx context.Context, c *Case) (Facts, []Finding, error) {
			f, found, err := j(ctx, c)
			if err != nil {
				return nil, found, err
			}
			return f, found, nil
		}
	}
	k.decode = func(b []byte) (Facts, error) {
		var f F
		if err := decodeAny(b, &f); err != nil {
			return nil, fmt.Errorf("facts of kind %s: %w", k.Name, err)
		}
		return f, nil
	}
	kinds[k.Name] = &k
}

// Kinds are all that are registered, by name.
func Kinds() []Kind {
	var out []Kind
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		out = append(out, *kinds[name])
	}
	return out
}

// opinions are words for what is not observed. No fact, of any kind and of any
// command, is called so.
var opinions = []string{"confidence", "confident", "score", "selfreport", "selfassess", "certainty", "likelihood", "probability", "trustworth", "rating"}

// opinion reports whether a fact's name says that it is somebody's opinion.
func opinion(name string) bool {
	name = strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
	return slices.ContainsFunc(opinions, func(w string) bool { return strings.Contains(name, w) })
}

// badFacts says why a type cannot be a kind's facts.
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
			return "its facts have a map whose keys are no text"
		}
		return badFacts(t.Elem(), seen)
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return "its facts hold a " + t.String() + ", whose type is open"
	}
	return ""
}

// Finding is one thing that a signal has to say, for people and for whoever goes on.
// Its texts may be the change's own words: they are shown through package visible.
type Finding struct {
	// ID names what it is about: a test's id, a rule, a program.
	ID   string `json:"id"`
	Text string `json:"text"`
	File string `json:"file,omitempty"` // of the tree
	Line int    `json:"line,omitempty"` // from 1; 0: none in particular
	// Detail is the first of what was printed about it.
	Detail string `json:"detail,omitempty"`
	// Noted findings keep nothing from passing.
	Noted bool `json:"noted,omitempty"`
}

// Bounds of what one signal can find.
const (
	MaxFindings = 1000
	maxDetail   = 2000
)
