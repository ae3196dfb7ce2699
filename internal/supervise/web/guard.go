package web

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Who may come in. A browser's cookie for 127.0.0.1 goes to every port of it, so also
// to a server that another user of this machine runs there. A session's cookie is
// therefore for a path that only this session knows, and is worth nothing without it:
// nobody else can have the browser ask for that path.

const (
	cookieName = "carboy"
	// tokenLife is how long a printed address that nobody has used works.
	tokenLife = 15 * time.Minute
	// sessionLife is how long a session works after its last page.
	sessionLife = 12 * time.Hour
	// maxSessions bounds the browsers that are in at once; the one that was idle for
	// longest has to go.
	maxSessions = 8
	secretBytes = 32
)

// session is one browser that came in.
type session struct {
	path   string   // /s/<secret>/: where its cookie is sent
	cookie [32]byte // SHA-256 of the cookie's value
	key    []byte   // of its forms' tokens
	used   time.Time
	events int // streams that are open
}

// doors hold the token and the sessions. Safe for concurrent use.
type doors struct {
	now func() time.Time

	mu       sync.Mutex
	token    [32]byte // SHA-256 of the one that works
	until    time.Time
	sessions map[string]*session // by path
}

func random() string {
	b := make([]byte, secretBytes)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// newToken makes a token; the one before it is dead.
func (d *doors) newToken() string {
	t := random()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.token, d.until = sha256.Sum256([]byte(t)), d.now().Add(tokenLife)
	return t
}

// enter exchanges a token for a session and the value of its cookie. The token is
// dead then, whoever used it.
func (d *doors) enter(token string) (s *session, cookie string, ok bool) {
	sum := sha256.Sum256([]byte(token))
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	if d.until.IsZero() || !now.Before(d.until) || subtle.ConstantTimeCompare(sum[:], d.token[:]) != 1 {
		return nil, "", false
	}
	d.token, d.until = [32]byte{}, time.Time{}
	for path, s := range d.sessions {
		if now.Sub(s.used) > sessionLife {
			delete(d.sessions, path)
		}
	}
	if len(d.sessions) >= maxSessions {
		oldest := ""
		for path, s := range d.sessions {
			if oldest == "" || s.used.Before(d.sessions[oldest].used) {
				oldest = path
			}
		}
		delete(d.sessions, oldest)
	}
	cookie = random()
	s = &session{path: "/s/" + random() + "/", cookie: sha256.Sum256([]byte(cookie)), key: []byte(random()), used: now}
	d.sessions[s.path] = s
	return s, cookie, true
}

// whose is the session that a request belongs to by its path and its cookie, and what
// it asks for below that path.
func (d *doors) whose(r *http.Request) (s *session, rest string, ok bool) {
	if len(r.URL.Path) < len("/s/")+2*secretBytes+1 || !strings.HasPrefix(r.URL.Path, "/s/") {
		return nil, "", false
	}
	path, rest := r.URL.Path[:len("/s/")+2*secretBytes+1], r.URL.Path[len("/s/")+2*secretBytes+1:]
	d.mu.Lock()
	defer d.mu.Unlock()
	s, now := d.sessions[path], d.now()
	if s == nil || now.Sub(s.used) > sessionLife {
		return nil, "", false
	}
	// Whoever can write cookies for this address from another port can add some of
	// this name; one of them has to be ours.
	for i, c := range r.CookiesNamed(cookieName) {
		sum := sha256.Sum256([]byte(c.Value))
		if i < 8 && subtle.ConstantTimeCompare(sum[:], s.cookie[:]) == 1 {
			s.used = now
			return s, rest, true
		}
	}
	return nil, "", false
}

// maxStreams bounds the streams of events of a session: one for each tab.
const maxStreams = 12

// stream counts a stream of events in; false: there are too many.
func (d *doors) stream(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.events >= maxStreams {
		return false
	}
	s.events++
	return true
}

func (d *doors) streamed(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.events--
}

// alive reports whether a session still works.
func (d *doors) alive(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[s.path] == s
}

// formToken is what a form carries that answers exactly this: another proposal, or
// the same with another digest, needs another.
func (s *session) formToken(id, digest string) string {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte(id + "\x00" + digest))
	return hex.EncodeToString(m.Sum(nil))
}

func (s *session) formTokenIs(token, id, digest string) bool {
	return hmac.Equal([]byte(token), []byte(s.formToken(id, digest)))
}

// sentFrom refuses what another page had the browser send: 0 when the request may be
// served. Browsers say for this address who has them ask (Fetch Metadata, from
// Safari 16.4, Firefox 90, Chrome 76 on), and pages can't lie there.
func sentFrom(r *http.Request, origin string) (status int, why string) {
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "same-origin":
	case "none": // typed, or from a bookmark
		if r.Method == http.MethodPost {
			return http.StatusForbidden, "answers are taken only from this page's own forms"
		}
	case "":
		if r.Method == http.MethodPost && r.Header.Get("Origin") == "" {
			return http.StatusForbidden, "answers are taken only from browsers that say where a form was; carboy supervise approve works without one"
		}
	default:
		return http.StatusForbidden, "another site asked for this page; open it from your own address bar"
	}
	if o := r.Header.Get("Origin"); o != "" && o != origin {
		return http.StatusForbidden, "another site asked for this page"
	}
	// It is never part of another page.
	switch r.Header.Get("Sec-Fetch-Dest") {
	case "iframe", "frame", "object", "embed", "fencedframe":
		return http.StatusForbidden, "this page is not shown within another"
	}
	return 0, ""
}
