package gateway

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

// TestCheckText: a text that leaves by another way than the network is searched as a
// request's body is, together with what left in requests and in texts before.
func TestCheckText(t *testing.T) {
	const place = "text for the forge"
	open := func(t *testing.T) *bottle { return newBottle(t, newWorld(), nil, watching) }
	for name, x := range map[string]struct{ text, says string }{
		"plain":       {"The key is " + watchedValue + ".", "secret: known secret deploy-key, in " + place + "; leave it out"},
		"base64":      {"see " + base64.StdEncoding.EncodeToString([]byte("k="+watchedValue)), "deploy-key, written as base64, in " + place},
		"hex":         {hex.EncodeToString([]byte(watchedValue)), "deploy-key, written as hex"},
		"over lines":  {strings.Join(strings.Split(watchedValue, ""), "\n"), "deploy-key"},
		"a token":     {"ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a", "secret: "},
		"another one": {"The key is " + harmlessValue + ".", ""},
		"nothing":     {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			err := b.gw.CheckText(x.text, place)
			if x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
				t.Errorf("%v, want %q", err, x.says)
			}
			found := b.gw.Summary().Found
			if x.says == "" && len(found) != 0 || x.says != "" && (len(found) != 1 || found[0].Action != FoundBlocked || found[0].Name != SuperviseName || found[0].Place != place || found[0].Inbound) {
				t.Errorf("%+v", found)
			}
		})
	}
	t.Run("in pieces", func(t *testing.T) {
		b := open(t)
		for i, want := range []bool{true, false, false} { // a piece that completes it is refused again
			piece := watchedValue[:14]
			if i > 0 {
				piece = watchedValue[14:28]
			}
			if err := b.gw.CheckText("see "+piece, place); (err == nil) != want {
				t.Errorf("piece %d: %v", i, err)
			}
		}
	})
	t.Run("with a request", func(t *testing.T) {
		o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", &recordingUpstream{}, watching)
		res, err := o.client(false).Do(post(strings.NewReader("note=" + watchedValue[:14])))
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		res.Body.Close()
		if err := o.gw.CheckText(harmlessValue[14:28], place); err != nil {
			t.Errorf("the neighbour: %v", err)
		}
		if err := o.gw.CheckText(watchedValue[14:28], place); err == nil {
			t.Error("the second piece may leave")
		}
	})
	t.Run("new routes", func(t *testing.T) {
		b := open(t)
		b.gw.SetRoutes(b.gw.table(), nil, map[string]secret.Value{"other": secret.NewString(harmlessValue)})
		if err := b.gw.CheckText(harmlessValue, place); err == nil || !strings.Contains(err.Error(), "known secret other") {
			t.Error(err)
		}
	})
}
