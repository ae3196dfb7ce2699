package gitgate

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/gitobject"
)

// lines makes pkt-lines of texts. "0000" and "0001" stand for themselves.
func lines(text ...string) []byte {
	var b []byte
	for _, s := range text {
		if s == "0000" || s == "0001" {
			b = append(b, s...)
		} else {
			b = appendLine(b, s, "\n")
		}
	}
	return b
}

// FuzzLines checks that accepted input is well formed: parsed again, it is accepted and
// gives the same.
func FuzzLines(f *testing.F) {
	const noID = "0000000000000000000000000000000000000000"
	const (
		fetch2 = iota
		fetch0
		offer2
		offerFetch
		offerPush
		commands
	)
	f.Add(byte(fetch2), lines("command=fetch", "agent=git/2", "object-format=sha1", "0001", "want "+someID, "filter combine:blob:none+tree:3", "deepen-not v1", "done", "0000"))
	f.Add(byte(fetch2), lines("command=ls-refs", "0001", "peel", "ref-prefix refs/heads/", "0000"))
	f.Add(byte(fetch0), lines("want "+someID+" multi_ack_detailed side-band-64k agent=git/2", "shallow "+someID, "deepen 3", "0000", "have "+someID, "0000", "done"))
	f.Add(byte(offer2), lines("version 2", "agent=git/2", "ls-refs=unborn other", "fetch=shallow packfile-uris", "object-format=sha256", "0000"))
	f.Add(byte(offerFetch), lines("# service=git-upload-pack", "0000", someID+" HEAD\x00multi_ack side-band-64k symref=HEAD:refs/heads/main push-cert=x", someID+" refs/tags/v1^{}", "shallow "+someID, "0000"))
	f.Add(byte(offerPush), lines(noID+" capabilities^{}\x00report-status atomic push-options", "0000"))
	f.Add(byte(offerPush), lines(someID+" refs/heads/main\x00report-status delete-refs side-band-64k", someID+" .have", "0000"))
	f.Add(byte(commands), lines("shallow "+someID, noID+" "+someID+" refs/heads/a\x00report-status side-band-64k push-options atomic", someID+" "+noID+" refs/heads/b", "0000", "ci.skip", "0000"))
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		var once func([]byte) ([]byte, error)
		switch kind {
		case fetch2, fetch0:
			once = func(b []byte) ([]byte, error) {
				out, empty, err := readFetch(bytes.NewReader(b), version(2*(1-kind)), 1<<20)
				if empty {
					out = []byte("0000")
				}
				return out, err
			}
		case offer2, offerFetch, offerPush:
			service := uploadPack
			if kind == offerPush {
				service = receivePack
			}
			once = func(b []byte) ([]byte, error) {
				o, err := readOffer(bytes.NewReader(b), service)
				if err != nil {
					return nil, err
				}
				return o.appendTo(nil, service), nil
			}
		case commands:
			once = func(b []byte) ([]byte, error) {
				p, err := readCommands(newLineReader(bytes.NewReader(b)), 10)
				if err != nil || p == nil {
					return nil, err
				}
				if len(p.updates) == 0 || len(p.updates) > 10 || len(p.options) > maxOptions {
					t.Fatalf("%+v", p)
				}
				return p.forward(&offer{format: p.format, caps: slices.Concat(offersPush, []string{"object-format=" + p.format})})
			}
		default:
			return
		}
		out, err := once(b)
		if err != nil || out == nil {
			return
		}
		again, err := once(out)
		if err != nil || !bytes.Equal(out, again) {
			t.Errorf("%q was let through as\n%q, which becomes\n%q %v", b, out, again, err)
		}
	})
}

// FuzzAhead checks that reading a pack stays within bounds, and that each object read is
// one of the pack's.
func FuzzAhead(f *testing.F) {
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"), false)
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x02\x33x\x9c\x4b\x4c\x4a\x06\x00\x02\x4d\x01\x27\x20x\x9c\x03\x00\x00\x00\x00\x01"), false)
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01\x71"+strings.Repeat("a", 32)+"x\x9c\x03\x00\x00\x00\x00\x01"), true)
	g, _ := newGate(f, Config{Limits: Bounds{Unpacked: 1 << 20}})
	g.aheadFrom = packHead
	f.Fuzz(func(t *testing.T, pack []byte, long bool) {
		format := "sha1"
		if long {
			format = "sha256"
		}
		in, err := g.newInspection()
		if err != nil {
			t.Fatal(err)
		}
		a := in.readAhead(t.Context(), newHistory(format))
		_, _ = a.Write(pack)
		a.end()
		if len(a.read) > len(pack) {
			t.Errorf("%d objects of %d bytes", len(a.read), len(pack))
		}
		for id := range a.read {
			if id == (gitobject.ID{}) || !long && !bytes.Equal(id[20:], make([]byte, 12)) {
				t.Errorf("an id %x", id)
			}
		}
	})
}
