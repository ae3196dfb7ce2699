package corpus

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/trace"
)

// traced lets a trickster try to avoid the trace, and checks that the trace has it all.
func traced(l *lab, _ []attacker.Attack) error {
	r := l.bottle(false, nil, attacker.Path, "trickster", l.secret)
	switch {
	case r.rec == nil:
		return r.err
	case !r.exited() || !strings.Contains(r.out, "tricked"):
		return fmt.Errorf("the trickster ended with %s: %.500s", r.ended(), r.msg)
	case r.rec.Isolation.WeakFacts() != "": // it does not promise what is attacked
		return errors.New(r.rec.Isolation.WeakFacts())
	case r.rec.Trace == nil:
		return errors.New("the run has no trace")
	}
	f, err := l.client.Trace(r.rec.ID)
	if err != nil {
		return err
	}
	defer f.Close()
	var facts []trace.Fact
	for {
		var x trace.Fact
		if err := f.Next(&x); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		facts = append(facts, x)
	}
	l.looksAtFacts(facts, uint64(r.rec.Trace.Dropped))
	return nil
}

func (l *lab) looksAtFacts(facts []trace.Fact, dropped uint64) {
	seen := func(id, what string, is func(*trace.Fact) bool) {
		if i := slices.IndexFunc(facts, func(f trace.Fact) bool { return is(&f) }); i >= 0 {
			l.verdicts["trace/"+id] = contained("fact %d: %s %s", facts[i].Seq, facts[i].Op, facts[i].Path)
		} else {
			l.verdicts["trace/"+id] = escaped("no fact shows %s", what)
		}
	}
	program := func(of string) func(*trace.Fact) bool {
		b, err := os.ReadFile(of)
		sum := sha256.Sum256(b)
		return func(f *trace.Fact) bool {
			return err == nil && f.Op == trace.Exec && f.Errno == 0 && f.Digest == string(sum[:])
		}
	}
	sh, cat := program("/bin/sh"), program("/bin/cat")
	seen("renamed-program", "the shell under its other name", func(f *trace.Fact) bool { return sh(f) && strings.HasSuffix(f.Path, "/"+attacker.Innocent) })
	seen("false-name", "the file behind a false first argument", func(f *trace.Fact) bool {
		return sh(f) && strings.HasSuffix(f.Path, "/"+attacker.Innocent) && len(f.Args) > 0 && f.Args[0] == attacker.Lie
	})
	seen("memfd-program", "a program that has no file", func(f *trace.Fact) bool { return cat(f) && !strings.HasSuffix(f.Path, "/cat") })
	seen("deleted-program", "the program that deleted itself", func(f *trace.Fact) bool { return sh(f) && strings.Contains(f.Path, "/"+attacker.Gone) })
	seen("search-in-vain", "what was looked for in vain", func(f *trace.Fact) bool { return f.Path == l.secret && f.Errno == uint32(unix.ENOENT) })
	for what, is := range map[string]func(*trace.Fact) bool{
		"a mount that was refused":    func(f *trace.Fact) bool { return f.Op == trace.Mount && f.Errno != 0 },
		"bpf, which is not there":     func(f *trace.Fact) bool { return f.Op == trace.Refused && f.Path == "bpf" },
		"an attempt to trace another": func(f *trace.Fact) bool { return f.Op == trace.Ptrace && f.Errno != 0 },
	} {
		if v := l.verdicts["trace/attempts"]; v.outcome != Escaped {
			seen("attempts", what, is)
		}
	}
	l.verdicts["trace/fake-lines"] = contained("%d facts, none of them printed", len(facts))
	if i := slices.IndexFunc(facts, func(f trace.Fact) bool {
		return strings.Contains(f.Path+f.Path2+strings.Join(f.Args, " "), attacker.Evil)
	}); i >= 0 {
		l.verdicts["trace/fake-lines"] = escaped("fact %d shows a program that never ran: %s %s", facts[i].Seq, facts[i].Op, facts[i].Path)
	}
	l.verdicts["trace/flood"] = l.buried(facts, dropped)
}

// buried checks that the trace has one program among thousands, and every sequence number.
func (l *lab) buried(facts []trace.Fact, dropped uint64) verdict {
	forks, found := 0, false
	var last, gaps uint64
	for _, f := range facts {
		if f.Seq != last+1 {
			gaps += f.Seq - last - 1
		}
		last = f.Seq
		if f.Op == trace.Fork {
			forks++
		}
		found = found || f.Op == trace.Exec && slices.Contains(f.Args, attacker.Buried)
	}
	switch {
	case gaps > dropped:
		return escaped("%d facts are missing, and %d are said to be", gaps, dropped)
	case dropped == 0 && !found:
		return escaped("the program is in no fact, and none is said to be missing")
	case dropped == 0 && forks < attacker.Forks:
		return untried("only %d processes were made", forks)
	}
	return contained("%d facts, %d processes; %d facts are missing, which is counted", len(facts), forks, dropped)
}
