package orchestrate

import "time"

// Schemas of the documents.
const (
	StatusSchema      = "carboy.dev/orchestrate-status/v1"
	DescriptionSchema = "carboy.dev/orchestrate-issue/v1"
)

// A StatusReport is what carboy knows of all issues, for JSON.
type StatusReport struct {
	Schema string        `json:"schema"`
	Issues []IssueStatus `json:"issues"`
	// Polled says when each repository was last looked at as a whole.
	Polled map[string]time.Time `json:"polled,omitempty"`
	// Errors say which calls of no single issue fail, by repository.
	Errors map[string]Failure `json:"errors,omitempty"`
}

// A Failure is a call that fails again and again.
type Failure struct {
	Error string    `json:"error"` // safe to show
	Since time.Time `json:"since"`
	Tries int       `json:"tries"`
}

// IssueStatus is what an operator wants to know of an issue. Its texts are safe to show.
type IssueStatus struct {
	Issue string `json:"issue"` // owner/repo#number
	Owner string `json:"owner"`
	Repo  string `json:"repo"`
	// Number of the issue.
	Number int64  `json:"number"`
	Title  string `json:"title,omitempty"`
	URL    string `json:"url,omitempty"`
	Agent  string `json:"agent,omitempty"`
	// State is running, frozen, destroyed, or waiting: the issue has one of our labels, and
	// is not begun.
	State    string   `json:"state"`
	Slug     string   `json:"slug,omitempty"`
	Turn     int      `json:"turn,omitempty"`
	Outcome  string   `json:"outcome,omitempty"` // of the newest turn that ended
	Waits    string   `json:"waits,omitempty"`   // what it waits for, in words
	Pull     int64    `json:"pull_request,omitempty"`
	PullURL  string   `json:"pull_request_url,omitempty"`
	Branch   string   `json:"branch,omitempty"`
	Verdict  string   `json:"verdict,omitempty"`
	Digest   string   `json:"provenance,omitempty"` // SHA-256 of the sealed provenance
	Tokens   int64    `json:"tokens"`
	Runs     []string `json:"runs,omitempty"` // ids, the oldest first
	Work     string   `json:"work,omitempty"`
	Watchdog bool     `json:"watchdog_fired,omitempty"`
	// LastCheckin is the last sign of life of the agent.
	LastCheckin *time.Time `json:"last_checkin,omitempty"`
	// Strangers counts comments of people who may not prompt.
	Strangers int `json:"strangers_comments,omitempty"`
	// Pending counts prompts that wait for the next turn.
	Pending int `json:"pending_prompts,omitempty"`
	// Warnings are about texts of people: hidden parts, phrases of prompt injection.
	Warnings []string `json:"warnings,omitempty"`
	Failure  *Failure `json:"failure,omitempty"`
}

// A Description is an issue with all its turns, for JSON.
type Description struct {
	Schema string `json:"schema"`
	IssueStatus
	Turns []TurnStatus `json:"turns"`
	// Steps are the engine's, of the newest run of the workflow.
	Steps    []StepStatus `json:"steps,omitempty"`
	Workflow string       `json:"workflow,omitempty"` // its status in the engine
	Attempts int          `json:"attempts,omitempty"` // how often a process began it
	Stuck    string       `json:"stuck,omitempty"`
}

// TurnStatus is a turn for people.
type TurnStatus struct {
	Number   int        `json:"number"`
	ID       string     `json:"id"`
	Prompts  []string   `json:"prompts"` // what it was for, such as "comment 17 by ada"
	Began    time.Time  `json:"began"`
	Ended    *time.Time `json:"ended,omitempty"`
	Outcome  string     `json:"outcome,omitempty"`
	Why      string     `json:"why,omitempty"`
	Summary  string     `json:"summary,omitempty"` // of the agent
	Commit   string     `json:"commit,omitempty"`
	Verdict  string     `json:"verdict,omitempty"`
	Runs     []string   `json:"runs,omitempty"`
	Work     string     `json:"work,omitempty"`
	Tokens   int64      `json:"tokens"`
	Watchdog bool       `json:"watchdog_fired,omitempty"`
	// Operations of the agent at the forge, and how many of them were refused.
	Operations int `json:"operations"`
	Refused    int `json:"refused"`
}

// StepStatus is a step of the workflow.
type StepStatus struct {
	Name  string     `json:"name"`
	Began time.Time  `json:"began"`
	Ended *time.Time `json:"ended,omitempty"`
}
