package attacker

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/zlib"
	"crypto/sha1" // for git's packs
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// token has a form that its vendor documents, and opens nothing. lookalike has none.
const (
	token     = "ghp_" + letters
	lookalike = "ghx_" + letters
	letters   = "x7Kq2mN9vR4tY8wE1zP5sD3fG6hJ0kL2bC4a"
)

// push is one way to push what must not leave. The same with what may leave is its control.
type push struct {
	name string
	// make stores the objects, and returns the name of the one that is pushed.
	make func(p *pushing) string
}

// pushing is a push that is being made. It is spoken by hand, so that a bottle needs no git.
type pushing struct {
	Git
	evil    bool
	mark    string // in the reference's name and in each message
	tip     string // upstream's
	ref     string
	gone    bool // the reference is to be deleted
	options []string
	first   *pushing // is pushed before
	forge   func(pack []byte) []byte
}

// PushMarks returns the marks of the pushes of an attack: those of the honest ones, and of
// the others. A mark is in the reference's name and in the messages of commits and tags.
func PushMarks(attack string) (honest, evil []string) {
	for i := range gitPushes()[strings.TrimPrefix(attack, gitFamily+"/")] {
		honest = append(honest, pushMark(attack, i, false))
		evil = append(evil, pushMark(attack, i, true))
	}
	return honest, evil
}

func pushMark(attack string, i int, evil bool) string {
	return fmt.Sprintf("%s/%s/%d.", pick(evil, "honest", "evil"), attack[strings.Index(attack, "/")+1:], i)
}

func pick(evil bool, fine, bad string) string {
	if evil {
		return bad
	}
	return fine
}

const (
	gitFamily = "git-gate"
	// pushesAtOnce is less than the gate refuses.
	pushesAtOnce = 4
)

// pushes returns the attacks on the git gate.
func pushes() []Attack {
	pushed := func(id, promise, how, defence, source string) Attack {
		all := func(e *Env, evil bool) (tries []try) {
			for i, w := range gitPushes()[id] {
				tries = append(tries, try{w.name, func() error {
					p := &pushing{evil: evil, mark: pushMark(gitFamily+"/"+id, i, evil), tip: e.GitTip}
					p.ref = "refs/heads/" + p.mark + "x"
					return p.send(e.Git, w.make(p))
				}})
			}
			return tries
		}
		return Attack{ID: id, Promise: promise, How: how, Defence: defence, Source: source, Judge: ByHost,
			Control: func(e *Env) error {
				var g errgroup.Group
				g.SetLimit(pushesAtOnce)
				for _, t := range all(e, false) {
					g.Go(func() error {
						if err := t.f(); err != nil {
							return fmt.Errorf("%s: %w", t.name, err)
						}
						return nil
					})
				}
				return g.Wait()
			},
			Try: func(e *Env) error { return e.attempt(pushesAtOnce, all(e, true)) }}
	}
	return family(gitFamily, "G1",
		pushed("files", "", "Push a token in a file, in one that a later commit removes, in one that no commit has, and put together by a delta.", "every object of a push is read, whatever leads to it", ""),
		pushed("texts", "", "Push a token in the message of a commit or a tag, in an author's name, in a note, in a push option.", "texts of objects and requests are read like files", ""),
		pushed("names", "", "Push a token as the name of a file, a directory, a branch.", "names are read like files", ""),
		pushed("archives", "", "Push a token in bzip2, xz, a zip, and zlib of any window.", "what is packed is unpacked and read", ""),
		pushed("unreadable", "", "Push a token where nobody reads: 7z, a zip with LZMA or an unknown method, a zip that says two things.", "what can't be read to its end goes to a person", ""),
		pushed("harmful-trees", "", "Push trees that a checkout would write into .git, or above itself.", "git checks each object before upstream has any", "CVE-2014-9390"),
		pushed("submodules", "", "Push a .gitmodules that runs something or leads upward, or that is a link.", "git checks each object before upstream has any", "CVE-2018-17456, CVE-2018-11235"),
		pushed("references", "", "Push a replacement for what others have, and a token under references that upstream doesn't show.", "no replacement goes on; a reference's place makes no difference", ""),
		pushed("missing-objects", "G3", "Push a reference without its objects: unknown ones, and those of a push that was refused.", "a refused push leaves nothing, and upstream takes no history with holes", ""),
		pushed("forged-packs", "", "Forge a pack: hide objects behind its end or its number of objects, lie about their sizes, name a base that is not there, send one with a deletion.", "git reads it to its end in quarantine; what follows refuses it", ""),
	)
}

// gitPushes returns the pushes of each attack.
func gitPushes() map[string][]push {
	all := tokensInTexts()
	maps.Copy(all, tokensInArchives())
	maps.Copy(all, harmfulObjects())
	return all
}

func inFile(name, file string, content func(p *pushing) string) push {
	return push{name, func(p *pushing) string { return p.commit("", p.file(file, content(p))) }}
}

func tokensInTexts() map[string][]push {
	return map[string][]push{
		"files": {
			inFile("a file", "a.txt", (*pushing).text),
			{"a file that is gone", func(p *pushing) string {
				return p.commit(p.commit("", p.file("a.txt", p.text())), p.file("b.txt", "fine\n"))
			}},
			{"a file that a tag names", func(p *pushing) string {
				p.ref = "refs/tags/" + p.mark + "x"
				return p.Object("blob", p.mark+p.text())
			}},
			{"a delta", func(p *pushing) string {
				const base = "what was there\n"
				return p.commit("", "100644 a.txt="+p.delta(p.Object("blob", base), base, p.text()))
			}},
		},
		"texts": {
			{"a commit's message", func(p *pushing) string { return p.says("A", p.text()) }},
			{"an author", func(p *pushing) string { return p.says(strings.TrimSpace(p.text()), "honest work") }},
			{"a tag's message", func(p *pushing) string {
				p.ref = "refs/tags/" + p.mark + "x"
				return p.Object("tag", "object "+p.says("A", "x")+"\ntype commit\ntag x\ntagger A <a@b.test> 1700000000 +0000\n\n"+p.mark+p.text())
			}},
			{"a note", func(p *pushing) string {
				p.ref = "refs/notes/" + p.mark + "x"
				return p.commit("", p.file(p.tip, p.text()))
			}},
			{"an option", func(p *pushing) string {
				p.options = []string{strings.TrimSpace(p.text())}
				return p.says("A", "x")
			}},
		},
		"names": {
			{"a file", func(p *pushing) string { return p.commit("", p.file(strings.TrimSpace(p.text()), "x\n")) }},
			{"a directory", func(p *pushing) string {
				return p.commit("", "40000 "+strings.TrimSpace(p.text())+"="+p.Tree(p.file("x", "x\n")))
			}},
			{"a branch", func(p *pushing) string {
				p.ref += "-" + strings.TrimSpace(p.text())
				return p.says("A", "x")
			}},
		},
		"references": {
			{"a replacement", func(p *pushing) string {
				if p.evil {
					p.ref = "refs/replace/" + p.tip
				}
				return p.says("A", "x")
			}},
			{"hidden", func(p *pushing) string {
				p.ref = HiddenRefs + p.mark + "x"
				return p.says("A", p.text())
			}},
		},
	}
}

func tokensInArchives() map[string][]push {
	all := map[string][]push{
		"archives": {
			inFile("bzip2", "a.bz2", func(p *pushing) string { return packedText(pick(p.evil, fineBzip2, evilBzip2)) }),
			inFile("tar.xz", "a.tar.xz", func(p *pushing) string { return packedText(pick(p.evil, fineXZ, evilXZ)) }),
			inFile("zip, deflated", "a.zip", func(p *pushing) string { return p.zipped(8, deflated(p.lines())) }),
			inFile("zip, bzip2", "a.zip", func(p *pushing) string { return p.zipped(12, packedText(pick(p.evil, fineBzip2, evilBzip2))) }),
		},
		"unreadable": {
			inFile("7z", "a.7z", func(p *pushing) string {
				if p.evil {
					return packedText(evil7z)
				}
				return "7z\xbc\xaf\x27\x1c\x00\x04" + lookalike + "\n" // it only begins like one
			}),
			closedZip("LZMA", func(p *pushing) string { return p.zipped(14, packedText(evilLZMA)) }),
			closedZip("method 97", func(p *pushing) string { return p.zipped(97, deflated(p.lines())) }),
			closedZip("encrypted in the local header alone", func(p *pushing) string { return patched(p.zipped(8, deflated(p.lines())), 6, 1) }),
			closedZip("stored in the local header alone", func(p *pushing) string { return patched(p.zipped(8, deflated(p.lines())), 8, 0) }),
		},
	}
	for _, window := range []byte{1, 4, 7} {
		for _, effort := range []byte{0, 3} {
			all["archives"] = append(all["archives"], inFile(fmt.Sprintf("zlib, window %d, effort %d", window, effort), "a.z", func(p *pushing) string {
				head := []byte{window<<4 | 8, effort << 6}
				head[1] += byte(31 - binary.BigEndian.Uint16(head)%31)
				return string(head) + deflated(p.lines()) + string(binary.BigEndian.AppendUint32(nil, adler32.Checksum([]byte(p.lines()))))
			}))
		}
	}
	return all
}

func harmfulObjects() map[string][]push {
	return map[string][]push{
		"harmful-trees": {
			tree(".git", "40000 .gitx", "40000 .git"),
			tree(".GIT", "40000 .GITX", "40000 .GIT"),
			tree("git~1", "40000 git~2", "40000 git~1"),
			tree("what HFS takes for .git", "40000 g\u200cit", "40000 .g\u200cit"),
			tree("..", "40000 ...", "40000 .."),
			tree("a path", "100644 x", "100644 a/../../x"),
			tree("two of one name", "100644 x", "100644 x", "100644 x"),
		},
		"submodules": {
			modules("a URL that is an option", "[submodule \"x\"]\n\tpath = x\n\turl = %s./x\n", "", "-u"),
			modules("a path that is an option", "[submodule \"x\"]\n\tpath = %sx\n\turl = ./x\n", "", "--upload-pack="),
			modules("a name that leads upward", "[submodule \"%sx\"]\n\tpath = x\n\turl = ./x\n", "", "../../"),
			modules("a command", "[submodule \"x\"]\n\tpath = x\n\turl = ./x\n\tupdate = %s\n", "checkout", "!id"),
			tree("a link", "120000 .gitmodule", "120000 .gitmodules"),
		},
		"missing-objects": {
			{"what nobody has", func(p *pushing) string { return pick(p.evil, p.tip, strings.Repeat("1234567890", 4)) }},
			{"a commit's files", func(p *pushing) string { return p.without(0, p.commit("", p.file("a.txt", p.mark))) }},
			{"a commit's tree", func(p *pushing) string { return p.without(1, p.commit("", p.file("a.txt", p.mark))) }},
			{"a commit before", func(p *pushing) string {
				return p.without(2, p.commit(p.commit("", p.file("a.txt", p.mark)), p.file("b.txt", p.mark)))
			}},
			{"what was refused", func(p *pushing) string {
				p.first = &pushing{evil: p.evil, mark: p.mark, ref: p.ref + "-first"}
				return p.first.says("A", p.text())
			}},
		},
		"forged-packs": {
			forged("a wrong sum", func(pack, _ []byte) []byte { return append(pack[:len(pack)-1], pack[len(pack)-1]+1) }),
			forged("a second pack behind it", func(pack, more []byte) []byte { return append(pack, packOf(1, more)...) }),
			forged("more objects than it counts", func(pack, more []byte) []byte {
				return sealed(append(pack[:len(pack)-sha1.Size], more...))
			}),
			forged("fewer objects than it counts", func(pack, _ []byte) []byte { pack[11]++; return sealed(pack[:len(pack)-sha1.Size]) }),
			forged("no pack", func(_, _ []byte) []byte { return nil }),
			forged("a size that is too large", func(pack, _ []byte) []byte { pack[12]++; return sealed(pack[:len(pack)-sha1.Size]) }),
			forged("a size that is too small", func(pack, _ []byte) []byte { pack[12]--; return sealed(pack[:len(pack)-sha1.Size]) }),
			forged("a kind that there is not", func(pack, _ []byte) []byte { pack[12] = 5 << 4; return sealed(pack[:len(pack)-sha1.Size]) }),
			{"a base that is not there", func(p *pushing) string {
				const base = "what was there\n"
				id := (&Git{}).Object("blob", base)
				if !p.evil {
					p.Object("blob", base)
				}
				return p.commit("", "100644 a.txt="+p.delta(id, base, "more\n"))
			}},
			{"with a deletion", func(p *pushing) string { p.gone = p.evil; return p.says("A", p.text()) }},
		},
	}
}

// HiddenRefs is the beginning of the references that upstream shows nobody.
const HiddenRefs = "refs/hidden/"

// closedZip returns a push of a zip that is not read. The control's is.
func closedZip(name string, closed func(p *pushing) string) push {
	return push{"zip, " + name, func(p *pushing) string {
		if p.evil {
			return p.commit("", p.file("a.zip", closed(p)))
		}
		return p.commit("", p.file("a.zip", p.zipped(8, deflated(p.lines()))))
	}}
}

// tree returns a push of a tree with entries "MODE NAME", or with an honest one.
func tree(name, honest string, evil ...string) push {
	return push{name, func(p *pushing) string {
		names := []string{honest}
		if p.evil {
			names = evil
		}
		var entries []string
		for i, n := range names {
			id := p.Object("blob", fmt.Sprint("x", i))
			if n[0] == '4' {
				id = p.Tree("100644 config=" + id)
			}
			entries = append(entries, n+"="+id)
		}
		return p.commit("", entries...)
	}}
}

// modules returns a push of a .gitmodules.
func modules(name, text, honest, evil string) push {
	return push{name, func(p *pushing) string {
		return p.commit("", p.file(".gitmodules", fmt.Sprintf(text, pick(p.evil, honest, evil))))
	}}
}

// forged returns a push whose pack is forged. more is one more object for it.
func forged(name string, forge func(pack, more []byte) []byte) push {
	return push{name, func(p *pushing) string {
		id := p.commit("", p.file("a.txt", "fine\n"))
		if p.evil {
			more := &pushing{evil: true, mark: p.mark}
			more.says("A", more.text())
			p.forge = func(pack []byte) []byte { return forge(pack, []byte(more.entries[1])) }
		}
		return id
	}}
}

// text returns a line with the token, or with what only looks like one.
func (p *pushing) text() string { return pick(p.evil, lookalike, token) + "\n" }

// lines returns a text that can be packed, with the same.
func (p *pushing) lines() string {
	return strings.Repeat("a line of text\nand then "+pick(p.evil, lookalike, token)+" and more\n", 2)
}

func (p *pushing) file(name, text string) string {
	return "100644 " + name + "=" + p.Object("blob", text)
}

func (p *pushing) commit(parent string, entries ...string) string {
	return p.Commit(p.Tree(entries...), parent, "A", p.mark)
}

// says returns a commit without files.
func (p *pushing) says(author, message string) string {
	return p.Commit(p.Tree(), "", author, p.mark+" "+message)
}

// without takes an object away again, if the push is evil, and returns id.
func (p *pushing) without(i int, id string) string {
	if p.evil {
		p.entries = slices.Delete(p.entries, i, i+1)
	}
	return id
}

// delta stores base with more behind it, as the difference, and returns its name.
func (p *pushing) delta(id, base, more string) string {
	raw, err := hex.DecodeString(id)
	p.fail(err)
	d := string([]byte{byte(len(base)), byte(len(base) + len(more)), 0x90, byte(len(base)), byte(len(more))}) + more
	p.entries = append(p.entries, entry(7, len(d), string(raw), d))
	return (&Git{}).Object("blob", base+more)
}

var packKinds = map[string]byte{"commit": 1, "tree": 2, "blob": 3, "tag": 4}

// entry returns an object as packs have it (gitformat-pack).
func entry(kind byte, size int, base, body string) string {
	b := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	_, _ = io.WriteString(w, body)
	_ = w.Close()
	return string(b) + base + z.String()
}

func packOf(n int, entries []byte) []byte {
	return sealed(append(binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(n)), entries...))
}

func sealed(pack []byte) []byte {
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// send pushes the object that id names to a repository. It succeeds if the other side says
// so.
func (p *pushing) send(url, id string) error {
	if p.Err != nil {
		return lost("%v", p.Err)
	}
	if p.first != nil {
		if err := p.first.send(url, id); (err == nil) == p.evil {
			return lost("the push before it: %v", err)
		}
	}
	const none = "0000000000000000000000000000000000000000"
	if p.gone {
		id = none
	}
	caps := " report-status side-band-64k"
	if len(p.options) > 0 {
		caps += " push-options"
	}
	line := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	body := line(none+" "+id+" "+p.ref+"\x00"+caps) + "0000"
	for _, o := range p.options {
		body += line(o)
	}
	if len(p.options) > 0 {
		body += "0000"
	}
	pack := packOf(len(p.entries), []byte(strings.Join(p.entries, "")))
	if p.forge != nil {
		pack = p.forge(pack)
	}
	c := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Post(url+"/git-receive-pack", "application/x-git-receive-pack-request", strings.NewReader(body+string(pack)))
	if err != nil {
		return lost("%v", err)
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	said := string(answer)
	_, why, gate := strings.Cut(said, "git gate: ")
	switch {
	case strings.Contains(said, "ok "+p.ref+"\n"):
		return nil
	case gate:
		why, _, _ = strings.Cut(why, "\n")
		return errors.New(why)
	case strings.Contains(said, "ng "+p.ref+" "):
		return errors.New("upstream refuses it")
	}
	return lost("no answer to the push: %s %.200q %v", r.Status, said, err)
}

// lost reports a push of which nobody said what became of it.
func lost(format string, args ...any) error {
	return &cannotError{why: fmt.Sprintf(format, args...), hung: true}
}

func deflated(text string) string {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, 9)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

// zipped returns a zip with one file, the lines, which are packed already.
func (p *pushing) zipped(method uint16, packed string) string {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.CreateRaw(&zip.FileHeader{Name: "a.txt", Method: method, CRC32: crc32.ChecksumIEEE([]byte(p.lines())), CompressedSize64: uint64(len(packed)), UncompressedSize64: uint64(len(p.lines()))})
	if err == nil {
		_, _ = io.WriteString(f, packed)
	}
	_ = w.Close()
	return b.String()
}

func patched(s string, at int, with byte) string { return s[:at] + string([]byte{with}) + s[at+1:] }

func packedText(s string) string {
	b, _ := base64.StdEncoding.DecodeString(s)
	return string(b)
}

// The lines as bzip2, xz, 7zz and Python's zipfile pack them: Go's library can't.
const (
	fineBzip2 = "QlpoOTFBWSZTWYi9xgMAACLfgAAQQAB/4A6dUCC3773QIABgKqpoAGgNA0000MTJ5Qw0Mhpk0AxDTTRoaM7rk6tI8Malhc3J1WujooUJ0FKlUvQblbytXIop0r0oeEipSRSJWdF8Z1jG/IrGRqSK1hFiTIJV6ZMykEEUyVF/F3JFOFCQiL3GAw=="
	evilBzip2 = "QlpoOTFBWSZTWf0LF3IAACLfgAAQQAB/4A6dUCC37/3QIABgKqpoDQaAA0wg00NPKGNNBoAZNAZGmhiaM6vqdYkUsKpfcXBze3JyUKE6CpU7LkGtYrWviKKdB4UqkjurIpEyVFYlWsL8itYmdI9LSLA3pkGlcrb2QggimRfxdyRThQkP0LF3IA=="
	fineXZ    = "/Td6WFoAAAFpIt42AgAhARwAAAAQz1jM4Cf/AKJdADCLiofEDvKXpPh1PcWp7dmXqQ+g2aTKqn2GPJzIhMOROmgoN3MMDo3MWR17ygokXHX4ybgsfiPc1U9Vysi7ixvyVypAsOuHtZcSpzUd96qHYxmnrmBwVBe0DfXuVE5dVFZrxlHQopXPdzK9flTtaJrked3M7yR43cHL8iuQRllVQ23/asVtKiyVGfG7kYlA4kuNddnedeOKU7KQj2rHSRH/AAAAAGxf1/MAAboBgFAAAPVVgcQ+MA2LAgAAAAABWVo="
	evilXZ    = "/Td6WFoAAAFpIt42AgAhARwAAAAQz1jM4Cf/AKJdADCLiofEDvKXpPh1PcWp7dmXqQ+g2aTKqn2GPJzIhMOROmgoN3MMDo3MWR17ygokXHX4ybgsfiPc1U9Vysi7ixvyVypAsOuG+ZYrgjFH3MGhJOJBT50nLs7EDZ4MnPORXrTDf75FgSL5E7FMaujn+B7iZ4NRnTupV8GI8ruJ7AZ8GZyJhla8Op3GbdkGwjqiP0XBw2l1mbJIucEMPWEwj269AAAAAGuSwa8AAboBgFAAAPVVgcQ+MA2LAgAAAAABWVo="
	evilLZMA  = "CQQFAF0AAIAAADCICYbUH0W4I4/00jj9L68fpXdYMIpqXR3ZBU9tiGRCwhP9rjBFgS0E9k06Y/NPmyzLqjHaFkUoVuYyrGwZGtbtLkq3bXZs//P3r3y8foP//+jjIAA="
	evil7z    = "N3q8ryccAARj6M/oWAAAAAAAAAA+AAAAAAAAAKRFLoDgAJMAUF0AMIgJhtQfRbgjj/TSOP0vrx+ld1gwimpdHdkFT22IZELCE/2uMEWBLQT2TTpj80+bLMuqMdoWRShW5jKsbBka1u0uSrdtdmz/8/evfImoAAAAAQQGAAEJWAAHCwEAASEhAQAMgJQACAoBNZDy8AAABQEZCwAAAAAAAAAAAAAAEQ0AYQAuAHQAeAB0AAAAAAA="
)
