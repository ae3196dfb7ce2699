package builder

import (
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/dockerfile"
	"github.com/carboy/carboy/internal/run/plan"
)

// predefined returns the value of a variable about the platform, which is this machine's.
func predefined(name string) (string, bool) {
	switch name {
	case "TARGETPLATFORM", "BUILDPLATFORM":
		return "linux/" + runtime.GOARCH, true
	case "TARGETOS", "BUILDOS":
		return "linux", true
	case "TARGETARCH", "BUILDARCH":
		return runtime.GOARCH, true
	case "TARGETVARIANT", "BUILDVARIANT":
		return "", true
	}
	return "", false
}

// lookupGlobal looks up a variable for FROM.
func (w *build) lookupGlobal(name string) (string, bool) {
	if v, ok := w.global[name]; ok {
		return v, true
	}
	return predefined(name)
}

var varName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// args carries out ARG: what the caller gives counts more than a default.
func (w *build) args(s *dockerfile.Step, into map[string]string, lookup func(string) (string, bool)) error {
	for _, p := range s.Pairs {
		if !varName().MatchString(p.Name) {
			return s.Bad("%.80q is not the name of a variable", p.Name)
		}
		w.used[p.Name] = true
		if v, ok := w.o.Args[p.Name]; ok {
			into[p.Name] = v
			continue
		}
		if p.Given {
			v, err := s.Expand(p.Value, lookup)
			if err != nil {
				return err
			}
			into[p.Name] = v
		} else if v, ok := w.lookupGlobal(p.Name); ok {
			into[p.Name] = v
		}
	}
	return nil
}

// lookup looks up a variable for an instruction. ENV counts more than ARG.
func (st *stage) lookup(name string) (string, bool) {
	for _, e := range st.config.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	v, ok := st.args[name]
	return v, ok
}

// set carries out ENV and LABEL. All values are expanded with the variables from before.
func (st *stage) set(s *dockerfile.Step) error {
	type pair struct{ name, value string }
	var all []pair
	for _, p := range s.Pairs {
		if s.Op == "ENV" && !varName().MatchString(p.Name) {
			return s.Bad("%.80q is not the name of a variable", p.Name)
		}
		v, err := s.Expand(p.Value, st.lookup)
		if err != nil {
			return err
		}
		if strings.ContainsRune(v, 0) {
			return s.Bad("%.80q holds a NUL byte", p.Name)
		}
		all = append(all, pair{p.Name, v})
	}
	for _, p := range all {
		if s.Op == "LABEL" {
			if st.config.Labels == nil {
				st.config.Labels = map[string]string{}
			}
			st.config.Labels[p.name] = p.value
			continue
		}
		e := p.name + "=" + p.value
		if i := slices.IndexFunc(st.config.Env, func(e string) bool { return strings.HasPrefix(e, p.name+"=") }); i >= 0 {
			st.config.Env[i] = e
		} else {
			st.config.Env = append(st.config.Env, e)
		}
	}
	return nil
}

// env returns the variables of a command, sorted: those of ARG, and over them those of ENV.
func (st *stage) env() []string {
	// Programs that store the time take it from here, Python's compiler among them.
	all := []string{"PATH=" + plan.DefaultPath, "SOURCE_DATE_EPOCH=" + strconv.FormatInt(Epoch.Unix(), 10)}
	if len(st.w.o.Allow)+len(st.w.o.AllowPrivate) > 0 {
		for name, v := range rootfs.BuiltTrustEnv() {
			all = append(all, name+"="+v)
		}
	}
	for name, v := range st.args {
		all = append(all, name+"="+v)
	}
	all = append(all, st.config.Env...)
	byName := map[string]string{}
	for _, e := range all {
		name, _, _ := strings.Cut(e, "=")
		byName[name] = e
	}
	out := make([]string, 0, len(byName))
	for _, e := range byName {
		out = append(out, e)
	}
	slices.Sort(out)
	return out
}
