package gitgate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

const zeroID = "0000000000000000000000000000000000000000"

func TestReadFetch(t *testing.T) {
	const v0 = "want " + someID + " side-band-64k"
	for _, x := range []struct {
		name  string
		v     version
		in    []byte
		err   string // empty if it is accepted
		empty bool
	}{
		{"version 2", 2, lines("command=fetch", "0001", "want "+someID, "done", "0000"), "", false},
		{"by reference", 2, lines("command=fetch", "0001", "want-ref refs/heads/main", "done", "0000"), "", false},
		{"nothing", 2, []byte("0000"), "", true},
		{"no command", 2, append([]byte("0000"), lines("command=fetch", "0000")...), "no command", false},
		{"two commands", 2, lines("command=fetch", "0000", "command=fetch", "0000"), "more than one command", false},
		{"another command", 2, lines("command=object-info", "0000"), "neither ls-refs nor fetch", false},
		{"delimiter first", 2, lines("0001", "command=fetch", "0000"), "a delimiter in the wrong place", false},
		{"two delimiters", 2, lines("command=fetch", "0001", "0001", "0000"), "a delimiter in the wrong place", false},
		{"ends early", 2, lines("command=fetch", "0001"), "unexpected EOF", false},
		{"another capability", 2, lines("command=fetch", "packfile-uris=https", "0000"), "a capability that was not offered", false},
		{"another argument", 2, lines("command=fetch", "0001", "packfile-uris https", "0000"), "an argument that fetch does not have", false},
		{"argument of ls-refs", 2, lines("command=ls-refs", "0001", "want "+someID, "0000"), "an argument that ls-refs does not have", false},
		{"too large", 2, bytes.Repeat([]byte("x"), 2000), "more than 1000 bytes", false},
		{"version 0", 0, lines(v0, "want "+someID, "deepen 3", "0000", "have "+someID, "done"), "", false},
		{"version 0, ends after haves", 0, lines(v0, "0000", "have "+someID, "0000"), "", false},
		{"version 0, ends early", 0, lines(v0), "unexpected EOF", false},
		{"version 0, nothing wanted", 0, append([]byte("0000"), lines("done")...), "nothing is wanted", false},
		{"version 0, after done", 0, lines(v0, "0000", "done", "done"), "something after done", false},
		{"version 0, delimiter", 0, lines(v0, "0001"), "not a request", false},
		{"version 0, have too early", 0, lines(v0, "have "+someID, "0000"), "a line that git-upload-pack does not accept", false},
		{"version 0, no side band", 0, lines("want "+someID+" ofs-delta", "0000"), "the first want asks for what was not offered", false},
		{"version 0, another capability", 0, lines("want "+someID+" side-band-64k sideband-all", "0000"), "the first want asks for what was not offered", false},
	} {
		out, empty, err := readFetch(bytes.NewReader(x.in), x.v, 1000)
		switch {
		case x.err == "" && (err != nil || empty != x.empty || !empty && len(out) == 0):
			t.Errorf("%s: %q, %t, %v", x.name, out, empty, err)
		case x.err != "" && (!errors.Is(err, errRequest) || !strings.Contains(err.Error(), x.err)):
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
	if _, _, err := readFetch(io.MultiReader(strings.NewReader("0032"), &broken{}), 2, 1000); !errors.Is(err, errRequest) {
		t.Errorf("a body that breaks off: %v", err)
	}
}

type broken struct{}

func (*broken) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestIsFilter(t *testing.T) {
	for s, want := range map[string]bool{
		"blob:none": true, "blob:limit=10": true, "blob:limit=10k": true, "blob:limit=k": false, "blob:limit": false, "blob:some": false,
		"tree:0": true, "tree:-1": false, "tree:x": false,
		"object:type=blob": true, "object:type=tag": true, "object:type=file": false,
		"sparse:oid=" + someID: true, "sparse:oid=HEAD:x": false, "sparse:path=x": false,
		"combine:blob:none+tree:3": true, "combine:blob:none+x": false, "combine:combine:blob:none": false, "combine:" + strings.Repeat("x", 1025): false,
		"": false, "other:x": false,
	} {
		if got := isFilter(s, 0); got != want {
			t.Errorf("isFilter(%q) = %t", s, got)
		}
	}
}

func TestRequestBody(t *testing.T) {
	const plain = "application/x-" + uploadPack + "-request"
	for _, x := range []struct {
		name, query, content, encoding, err string
	}{
		{"plain", "", plain, "", ""},
		{"another type", "", "text/plain", "", "is not of type"},
		{"with a query", "?x", plain, "", "has a query"},
		{"not gzip", "", plain, "gzip", "is not gzip"},
		{"another encoding", "", plain, "br", "other than gzip"},
	} {
		r := httptest.NewRequest("POST", "/app.git/git-upload-pack"+x.query, strings.NewReader("0000"))
		r.Header.Set("Content-Type", x.content)
		r.Header.Set("Content-Encoding", x.encoding)
		body, err := requestBody(httptest.NewRecorder(), r, uploadPack, 100)
		if x.err == "" {
			b, rerr := io.ReadAll(body)
			if err != nil || rerr != nil || string(b) != "0000" {
				t.Errorf("%s: %q %v %v", x.name, b, err, rerr)
			}
		} else if !errors.Is(err, errRequest) || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
}

func TestReadCommands(t *testing.T) {
	const caps = "\x00report-status side-band-64k"
	update := zeroID + " " + someID + " refs/heads/a"
	for _, x := range []struct {
		name string
		in   []byte
		err  string
	}{
		{"a push", lines(update+caps, "0000"), ""},
		{"a shallow one with options", lines("shallow "+someID, update+caps+" push-options", "0000", "ci.skip", "0000"), ""},
		{"nothing", []byte("0000"), ""},
		{"only shallow", lines("shallow "+someID, "0000"), "no reference to change"},
		{"a bad shallow", lines("shallow x", "0000"), "a malformed shallow line"},
		{"no capabilities", lines(update, "0000"), "names no capabilities"},
		{"another capability", lines(update+caps+" push-cert", "0000"), "a capability that was not offered"},
		{"no side band", lines(update+"\x00report-status", "0000"), "no report in a side band"},
		{"ends early", lines(update + caps), "it ends too early"},
		{"options end early", lines(update+caps+" push-options", "0000", "x"), "it ends too early"},
		{"a delimiter", lines(update+caps, "0001", "0000"), "a delimiter in the wrong place"},
		{"signed", lines("push-cert\x00report-status side-band-64k", "0000"), "signed pushes"},
		{"no command", lines("delete refs/heads/a"+caps, "0000"), "a malformed command"},
		{"another format", lines(update+caps+" object-format=sha256", "0000"), "a malformed command"},
		{"a bad reference", lines(zeroID+" "+someID+" heads/a"+caps, "0000"), "of the form refs/"},
		{"not UTF-8", lines(zeroID+" "+someID+" refs/heads/\xff"+caps, "0000"), "is not UTF-8"},
		{"a replacement", lines(zeroID+" "+someID+" refs/replace/"+someID+caps, "0000"), "another history"},
		{"twice", lines(update+caps, update, "0000"), "is changed twice"},
		{"too many", lines(update+caps, update+"b", update+"c", "0000"), "more than 2 references"},
		{"an escape in an option", lines(update+caps+" push-options", "0000", "\x1b[2J", "0000"), "options"},
	} {
		p, err := readCommands(newLineReader(bytes.NewReader(x.in)), 2)
		switch {
		case x.err == "" && (err != nil || (p == nil) != (x.name == "nothing")):
			t.Errorf("%s: %+v %v", x.name, p, err)
		case x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)):
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
}

// A push must not ask for what upstream cannot do.
func TestForward(t *testing.T) {
	one := RefUpdate{Name: "refs/heads/a", Old: zeroID, New: someID}
	gone := RefUpdate{Name: "refs/heads/b", Old: someID, New: zeroID}
	for _, x := range []struct {
		name string
		p    pushRequest
		caps []string
		err  string
	}{
		{"one", pushRequest{updates: []RefUpdate{one}}, nil, ""},
		{"all", pushRequest{updates: []RefUpdate{one, gone}, caps: []string{"quiet"}, options: []string{"x"}, shallow: []string{someID}}, offersPush, ""},
		{"two at once", pushRequest{updates: []RefUpdate{one, one}}, []string{"delete-refs"}, "all or none"},
		{"atomic", pushRequest{updates: []RefUpdate{one}, caps: []string{"atomic"}}, nil, "all or none"},
		{"deletion", pushRequest{updates: []RefUpdate{gone}}, []string{"atomic"}, "deleting references"},
		{"options", pushRequest{updates: []RefUpdate{one}, options: []string{"x"}}, nil, "does not support push options"},
		{"format", pushRequest{updates: []RefUpdate{one}, format: "sha256"}, nil, "those pushed are sha256"},
	} {
		if x.p.format == "" {
			x.p.format = "sha1"
		}
		b, err := x.p.forward(&offer{format: "sha1", caps: x.caps})
		switch {
		case x.err == "" && (err != nil || !bytes.Contains(b, []byte(one.Name+"\x00 report-status"))):
			t.Errorf("%s: %q %v", x.name, b, err)
		case x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)):
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
}

func TestReadOffer(t *testing.T) {
	for _, x := range []struct {
		name, service string
		in            []byte
		err           string
	}{
		{"version 2", uploadPack, lines("version 2", "ls-refs", "fetch=shallow", "0000"), ""},
		{"version 1", uploadPack, lines("version 1", someID+" HEAD\x00side-band-64k", "0000"), ""},
		{"an empty repository", receivePack, lines(zeroID+" capabilities^{}\x00report-status", "0000"), ""},
		{"nothing to push to", receivePack, []byte("0000"), ""},
		{"nothing to fetch", uploadPack, []byte("0000"), "it lists no capabilities"},
		{"an error", uploadPack, lines("ERR no such repository"), "no such repository"},
		{"ends early", uploadPack, lines("version 2"), "unexpected EOF"},
		{"a delimiter", uploadPack, lines("version 2", "0001", "0000"), errFraming.Error()},
		{"an escape", uploadPack, lines("version 2", "agent=\x1b[2J", "0000"), errFraming.Error()},
		{"another format", uploadPack, lines("version 2", "object-format=sha512", "0000"), "its object format is unknown"},
		{"another format in version 0", uploadPack, lines(someID+" HEAD\x00object-format=sha512", "0000"), "its object format is unknown"},
		{"no capabilities", uploadPack, lines(someID+" HEAD", "0000"), "names no capabilities"},
		{"no reference", uploadPack, lines(someID+" HEAD\x00side-band-64k", "refs/heads/a", "0000"), "a malformed reference"},
		{"an id of another format", receivePack, lines(someID+" HEAD\x00object-format=sha256", "0000"), "a malformed reference"},
	} {
		_, err := readOffer(bytes.NewReader(x.in), x.service)
		if x.err == "" && err != nil || x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
	// A repository without references offers its capabilities under the zero id.
	if b := string((&offer{format: "sha256"}).appendTo(nil, receivePack)); !strings.Contains(b, strings.Repeat("0", 64)+" capabilities^{}\x00report-status") {
		t.Errorf("an empty repository is offered as %q", b)
	}
}

func TestParseReport(t *testing.T) {
	for _, x := range []struct {
		name string
		in   []byte
		want string // the result of refs/heads/a
		err  string
	}{
		{"done", lines("unpack ok", "ok refs/heads/a", "option refname refs/heads/a", "0000"), "ok", ""},
		{"refused", lines("unpack ok", "ng refs/heads/a pre-receive hook declined", "0000"), "upstream: pre-receive hook declined", "refuses 1 of 1"},
		{"refused without a reason", lines("unpack ok", "ng refs/heads/a", "0000"), "upstream refuses it", "refuses 1 of 1"},
		{"silent about it", lines("unpack ok", "ok refs/heads/b", "0000"), "upstream says nothing of it", "refuses 1 of 1"},
		{"not unpacked", lines("unpack index-pack failed", "ng refs/heads/a unpacker error", "0000"), "upstream could not unpack it", "can't unpack"},
		{"another word", lines("unpack ok", "maybe refs/heads/a", "0000"), "", errFraming.Error()},
		{"ends early", lines("unpack ok"), "", "unexpected EOF"},
	} {
		updates := []RefUpdate{{Name: "refs/heads/a"}}
		err := parseReport(x.in, updates)
		if updates[0].Result != x.want || (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %q %v, want %q %q", x.name, updates[0].Result, err, x.want, x.err)
		}
	}
}

// TestRelayReport: an upstream without a side band sends its report in plain lines; with
// a side band, inside of it.
func TestRelayReport(t *testing.T) {
	plain := lines("unpack ok", "0000")
	banded := appendFlush(appendData(nil, append([]byte{bandData}, plain...)))
	for _, x := range []struct {
		name string
		band bool
		in   []byte
		err  string
	}{
		{"plain", false, plain, ""},
		{"side band", true, append(appendBand(nil, bandMessage, "checking\n"), banded...), ""},
		{"an error", true, appendBand(nil, bandError, "out of disk"), "out of disk"},
		{"another band", true, appendBand(nil, 9, "x"), errFraming.Error()},
		{"a delimiter", true, []byte("0001"), errFraming.Error()},
		{"an empty line", true, []byte("0004"), errFraming.Error()},
		{"cut off", true, banded[:6], "unexpected EOF"},
	} {
		r := newReport(httptest.NewRecorder())
		got, err := r.relay(newLineReader(bytes.NewReader(x.in)), x.band)
		switch {
		case x.err == "" && (err != nil || !bytes.Equal(got, plain)):
			t.Errorf("%s: %q %v", x.name, got, err)
		case x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)):
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
}

func TestFetchedPack(t *testing.T) {
	for in, want := range map[string]string{
		string(appendBand(nil, bandError, "not our ref")): "not our ref",
		string(lines("ERR no access")):                    "no access",
	} {
		if _, err := io.ReadAll(&fetchedPack{l: newLineReader(strings.NewReader(in))}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", in, err)
		}
	}
	in := slices.Concat(lines("packfile"), appendBand(nil, bandMessage, "counting"), appendBand(nil, bandData, "PACK"), appendBand(nil, bandData, "rest"))
	if b, err := io.ReadAll(&fetchedPack{l: newLineReader(bytes.NewReader(in))}); err != nil || string(b) != "PACKrest" {
		t.Errorf("%q %v", b, err)
	}
}

func TestReadObjects(t *testing.T) {
	const blob = someID + " blob 3\nabc\n"
	for in, want := range map[string]string{
		blob + blob:                     "",
		someID + " missing\n" + blob:    "",
		someID + " blob 3\nab":          "ends too early",
		someID + " blob 3\nabcd\n":      "ends too early",
		someID + " blob\n":              "unexpected output",
		"HEAD blob 3\nabc\n":            "unexpected output",
		someID + " blob -1\nabc\n":      "unexpected output",
		someID + " blob x\nabc\n":       "unexpected output",
		someID + " blob 3":              "unexpected EOF",
		"fatal: not a git repository\n": "unexpected output",
	} {
		err := readObjects(strings.NewReader(in), func(object) error { return nil })
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
	if err := readObjects(strings.NewReader(blob), func(object) error { return io.ErrClosedPipe }); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the callback's error is lost: %v", err)
	}
}

// The trees that had no room during the scan are read again when something was found.
func TestTreesWithoutRoom(t *testing.T) {
	t.Parallel()
	g, _ := newGate(t, Config{})
	pack, _ := packOf(t, "sha1")
	q, _, err := received(t, g, "sha1", pack)
	if err != nil {
		t.Fatal(err)
	}
	read := func(h *history) {
		t.Helper()
		if err := q.each(t.Context(), func(o object) error {
			if o.kind == "blob" {
				return nil
			}
			b, err := io.ReadAll(o.body)
			if err != nil {
				return err
			}
			return h.add(o, b)
		}); err != nil {
			t.Fatal(err)
		}
	}
	whole, tight := newHistory("sha1"), newHistory("sha1")
	tight.room = 1
	read(whole)
	read(tight)
	if whole.partial || len(whole.trees) == 0 || !tight.partial || len(tight.trees) != 0 {
		t.Fatalf("with room %d trees (partial %t), without %d (%t)", len(whole.trees), whole.partial, len(tight.trees), tight.partial)
	}
	if err := q.readTrees(t.Context(), tight); err != nil || tight.partial {
		t.Fatalf("partial %t, %v", tight.partial, err)
	}
	if !maps.EqualFunc(whole.trees, tight.trees, bytes.Equal) {
		t.Errorf("%d trees, want %d", len(tight.trees), len(whole.trees))
	}
}

// git's error must not be lost, also when io.Copy reads its output.
func TestCommandError(t *testing.T) {
	t.Parallel()
	g, _ := newGate(t, Config{})
	for name, read := range map[string]func(*command) error{
		"read": func(c *command) error { _, err := io.ReadAll(c); return err },
		"copy": func(c *command) error { _, err := io.Copy(io.Discard, c); return err },
	} {
		c, err := start(t.Context(), g.cfg.Git, t.TempDir(), g.cfg.Limits.Check, nil, "each")
		if err != nil {
			t.Fatal(err)
		}
		if err := read(c); err == nil {
			t.Errorf("%s: git ran where there is no repository", name)
		}
		_ = c.Close()
	}
}

func TestJoined(t *testing.T) {
	var many []string
	for i := range 30 {
		many = append(many, fmt.Sprintf("%02d", i))
	}
	if got := joined(many); !strings.HasPrefix(got, "00, 01, ") || !strings.HasSuffix(got, "19, …") {
		t.Error(got)
	}
	if got := joined([]string{"b", "a"}); got != "a, b" {
		t.Error(got)
	}
}
