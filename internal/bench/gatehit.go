package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// hitRounds is the number of times that a verdict is asked for again.
const hitRounds = 20

// HitReport holds the cost of a command that returns an earlier verdict.
type HitReport struct {
	Whole *Spread `json:"whole_ms"`
	// CPU is the processor's time of the command and of all that it starts, and Start
	// that of a carboy that says its version.
	CPU   *Spread `json:"cpu_ms"`
	Start *Spread `json:"version_cpu_ms"`
	// Hash is the time to read the files of both commits with git and to hash them,
	// once, and Rest is the whole without it.
	Hash *Spread `json:"hashing_ms"`
	Rest *Spread `json:"rest_ms"`
}

// hit measures a command that returns an earlier verdict, in turns with its parts.
func (b *gateBench) hit() (*HitReport, error) {
	var whole, cpu, start, hash, rest []float64
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	one := func(stdin []byte, args ...string) (out []byte, took, used time.Duration, err error) {
		c := exec.CommandContext(b.ctx, args[0], args[1:]...)
		c.Dir, c.Env, c.Stdin = b.dir, b.env, bytes.NewReader(stdin)
		begun := time.Now()
		if out, err = c.Output(); err != nil {
			return nil, 0, 0, fmt.Errorf("%q: %w", args, err)
		}
		return out, time.Since(begun), c.ProcessState.UserTime() + c.ProcessState.SystemTime(), nil
	}
	var ids bytes.Buffer
	asked := map[string]bool{}
	for _, rev := range []string{"base", "HEAD"} {
		out, _, _, err := one(nil, "git", "ls-tree", "-r", "-z", "--full-tree", "--format=%(objectname)", rev)
		if err != nil {
			return nil, err
		}
		for id := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if !asked[id] { // most are in both
				asked[id] = true
				ids.WriteString(id + "\n")
			}
		}
	}
	for i := range hitRounds + 1 {
		out, took, used, err := one(nil, b.carboy, "gate", "run", "-q", "--json", "--base", "base")
		if err != nil {
			return nil, err
		}
		if i == 0 { // the one before may have been too young to be kept
			continue
		}
		if !bytes.Contains(out, []byte(`"cached": true`)) {
			return nil, fmt.Errorf("round %d: the verdict is not given again", i)
		}
		_, _, version, err := one(nil, b.carboy, "version")
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		blobs, _, _, err := one(ids.Bytes(), "git", "cat-file", "--batch", "--buffer")
		if err != nil {
			return nil, err
		}
		sha256.Sum256(blobs)
		hashed := time.Since(begun)
		whole, cpu, start, hash, rest = append(whole, ms(took)), append(cpu, ms(used)), append(start, ms(version)), append(hash, ms(hashed)), append(rest, ms(took-hashed))
	}
	return &HitReport{spreadOf(whole), spreadOf(cpu), spreadOf(start), spreadOf(hash), spreadOf(rest)}, nil
}

func (h *HitReport) goal() Goal {
	return Goal{What: "the whole command that gives a verdict again, without reading and hashing the files", Limit: 50, Unit: "ms", Got: h.Rest, Also: "with both " + h.Whole.shown() + "; its processor time " + h.CPU.shown() + ", of which `carboy version` takes " + h.Start.shown()}
}
