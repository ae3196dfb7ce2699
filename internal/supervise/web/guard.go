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

// This file decides who gets in. A browser sends a cookie for 127.0.0.1 to every port, so
// also to a server of another user of this machine. A session's cookie is therefore for a
// path that only this session knows, and is useless without the path: nobody else can make
// the browser request it.

const (
	cookieName = "carboy"
	// tokenLife is the lifetime of a printed address that nobody has used.
	tokenLife = 15 * time.Minute
	// sessionLife is the lifetime of a session after its last page.
	sessionLife = 12 * time.Hour
	// maxSessions bounds the sessions. A new one beyond that ends the one that was idle for
	// longest.
	maxSessions = 8
	secretBytes = 32
)

// session is a browser that was let in.
type session struct {
	path   string   // /s/<secret>/, the path of its cookie
	cookie [32]byte // SHA-256 of the cookie's value
	key    []byte   // for the tokens of its forms
	used   time.Time
	events int // open streams
}

// sessionStore holds the token and the sessions. It is safe for concurrent use.
type sessionStore struct {
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

// newToken returns a new token. The earlier token is no longer valid.
func (d *sessionStore) newToken() string {
	t := random()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.token, d.until = sha256.Sum256([]byte(t)), d.now().Add(tokenLife)
	return t
}

// enter exchanges a token for a session and its cookie's value. The token is no longer
// valid then, whoever used it.
func (d *sessionStore) enter(token string) (s *session, cookie string, ok bool) {
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

// find returns the session of a request, by its path and cookie, and the rest of the path.
func (d *sessionStore) find(r *http.Request) (s *session, rest string, ok bool) {
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
	// A server on another port can add cookies of this name, so look at all of them.
	for i, c := range r.CookiesNamed(cookieName) {
		sum := sha256.Sum256([]byte(c.Value))
		if i < 8 && subtle.ConstantTimeCompare(sum[:], s.cookie[:]) == 1 {
			s.used = now
			return s, rest, true
		}
	}
	return nil, "", false
}

// maxStreams bounds the event streams of a session, one for each tab.
const maxStreams = 12

// beginStream counts a new event stream. It returns false if there are too many.
func (d *sessionStore) beginStream(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.events >= maxStreams {
		return false
	}
	s.events++
	return true
}

func (d *sessionStore) endStream(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.events--
}

// alive reports whether a session is still valid.
func (d *sessionStore) alive(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[s.path] == s
}

// formToken returns the token of a form that answers a proposal with one digest. Another
// proposal or digest needs another token.
func (s *session) formToken(id, digest string) string {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte(id + "\x00" + digest))
	return hex.EncodeToString(m.Sum(nil))
}

func (s *session) formTokenIs(token, id, digest string) bool {
	return hmac.Equal([]byte(token), []byte(s.formToken(id, digest)))
}

// sentFrom returns 0 if a request may be served, and the HTTP status and reason if another
// page made the browser send it. Browsers name the origin of a request in Fetch Metadata
// (Safari from 16.4, Firefox from 90, Chrome from 76), and pages cannot change that.
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
	// This page is never part of another page.
	switch r.Header.Get("Sec-Fetch-Dest") {
	case "iframe", "frame", "object", "embed", "fencedframe":
		return http.StatusForbidden, "this page is not shown within another"
	}
	return 0, ""
}
